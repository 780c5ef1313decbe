//! The parts of a key, as bytes.

use std::borrow::Cow;
use std::sync::Arc;

use smol_str::ToSmolStr as _;
use uuid::Uuid;

/// A part of a key: text, bytes, an integer or a [`Uuid`].
///
/// The part of an integer is its decimal digits, and that of a UUID its 36 lower-case characters, so `7` and `"7"` are one
/// part. A `u8` is none, because `b"order"` would be five of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no part of a lock key",
    label = "not text, bytes, an integer or a `Uuid`",
    note = "write the value as text: `value.to_string()`"
)]
pub trait KeyPart {
    #[doc(hidden)]
    fn with_bytes<R>(&self, take: impl FnOnce(&[u8]) -> R) -> R;
}

/// The parts of a key, for [`LockKey::from_parts`](crate::LockKey::from_parts): an array, a slice, a vector or a tuple.
#[diagnostic::on_unimplemented(
    message = "`{Self}` are no parts of a lock key",
    label = "not an array, a slice, a vector or a tuple of parts",
    note = "parts of one type are an array, `[\"order\", id]`; of several types, a tuple: `(\"order\", 42)`"
)]
pub trait KeyParts {
    #[doc(hidden)]
    fn each<E>(&self, take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E>;
}

macro_rules! as_bytes {
    ($($type:ty),*) => {$(
        impl KeyPart for $type {
            fn with_bytes<R>(&self, take: impl FnOnce(&[u8]) -> R) -> R {
                take(self.as_ref())
            }
        }
    )*};
}
as_bytes!(str, String, [u8], Vec<u8>);

impl<const N: usize> KeyPart for [u8; N] {
    fn with_bytes<R>(&self, take: impl FnOnce(&[u8]) -> R) -> R {
        take(self)
    }
}

macro_rules! as_digits {
    ($($type:ty),*) => {$(
        impl KeyPart for $type {
            fn with_bytes<R>(&self, take: impl FnOnce(&[u8]) -> R) -> R {
                take(self.to_smolstr().as_bytes())
            }
        }
    )*};
}
as_digits!(u16, u32, u64, usize, i32, i64);

impl KeyPart for Uuid {
    fn with_bytes<R>(&self, take: impl FnOnce(&[u8]) -> R) -> R {
        let mut buffer = Uuid::encode_buffer();
        take(self.hyphenated().encode_lower(&mut buffer).as_bytes())
    }
}

macro_rules! through {
    ($(($($generics:tt)*) $type:ty),*) => {$(
        impl<$($generics)*> KeyPart for $type {
            fn with_bytes<R>(&self, take: impl FnOnce(&[u8]) -> R) -> R {
                (**self).with_bytes(take)
            }
        }
    )*};
}
through!(
    (T: KeyPart + ?Sized) &T,
    (T: KeyPart + ?Sized) Arc<T>,
    (T: KeyPart + ToOwned + ?Sized) Cow<'_, T>
);

impl<T: KeyPart> KeyParts for [T] {
    fn each<E>(&self, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.iter().try_for_each(|part| part.with_bytes(&mut take))
    }
}

impl<T: KeyPart, const N: usize> KeyParts for [T; N] {
    fn each<E>(&self, take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.as_slice().each(take)
    }
}

impl<T: KeyPart> KeyParts for Vec<T> {
    fn each<E>(&self, take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.as_slice().each(take)
    }
}

impl<P: KeyParts + ?Sized> KeyParts for &P {
    fn each<E>(&self, take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        (**self).each(take)
    }
}

macro_rules! tuples {
    ($(($($part:ident)*))*) => {$(
        impl<$($part: KeyPart),*> KeyParts for ($($part,)*) {
            fn each<E>(&self, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
                #[allow(non_snake_case)]
                let ($($part,)*) = self;
                $($part.with_bytes(&mut take)?;)*
                Ok(())
            }
        }
    )*};
}
tuples!((A B) (A B C) (A B C D) (A B C D F));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockKey;

    #[test]
    fn parts_of_each_type_are_those_of_their_text() {
        let id = Uuid::from_u128(0x67e5_5044_10b1_426f_9247_bb68_0e5f_e0c8);
        let text = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        let expected = LockKey::from_parts(["order", "-7", text, "18446744073709551615"]);
        let key = LockKey::from_parts(("order", -7_i64, id, u64::MAX));
        assert_eq!(key, expected);
        let owned = (
            String::from("order"),
            &-7,
            text.as_bytes(),
            Arc::<str>::from("a"),
        );
        assert_eq!(
            LockKey::from_parts(owned),
            LockKey::from_parts(["order", "-7", text, "a"])
        );
        assert_eq!(
            LockKey::from_parts([1_u32, 20]),
            LockKey::from_parts(vec!["1", "20"])
        );
        assert_eq!(
            LockKey::from_parts([b"a", b"b"]),
            LockKey::from_parts(["a", "b"])
        );
        let two: &[Cow<'_, str>] = &["a".into(), "b".into()];
        assert_eq!(LockKey::from_parts(two), LockKey::from_parts(["a", "b"]));
    }
}
