//! Keys that a closure reads from the request.

use std::any::type_name;
use std::fmt;

use http::request::Parts;

use super::extractor::KeyExtractor;
use crate::{InvalidKey, LockKey, LockKeys};

/// The keys of [`LockLayer::by_fn`](crate::LockLayer::by_fn).
#[derive(Clone)]
pub struct ByFn<F> {
    function: F,
}

impl<F> ByFn<F> {
    pub(in crate::layer) fn new(function: F) -> Self {
        Self { function }
    }
}

impl<F, R> KeyExtractor for ByFn<F>
where
    F: Fn(&Parts) -> R,
    R: IntoLockKeys,
{
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        (self.function)(request).into_lock_keys()
    }
}

impl<F> fmt::Debug for ByFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByFn<{}>", type_name::<F>())
    }
}

/// A value that a closure for [`LockLayer::by_fn`](crate::LockLayer::by_fn) can return.
///
/// | value | effect |
/// |---|---|
/// | [`LockKey`] or [`LockKeys`] | The request holds the keys. |
/// | `Option` | `None` passes the request without a lock. |
/// | `Result` with [`InvalidKey`] | `Err` is rejected with 400, or with 500 for [`InvalidKey::Setup`]. |
///
/// ```
/// use tower_lock::LockKey;
/// use tower_lock::keys::IntoLockKeys;
///
/// let keys = Some(LockKey::new("order:42")).into_lock_keys();
/// assert_eq!(keys, Ok(Some(LockKey::new("order:42").into())));
/// assert_eq!(None::<LockKey>.into_lock_keys(), Ok(None));
/// ```
#[diagnostic::on_unimplemented(
    message = "a closure for `by_fn` cannot return `{Self}`",
    label = "not a `LockKey`, `LockKeys`, or an `Option` or `Result` of one",
    note = "the error of a `Result` must be `tower_lock::keys::InvalidKey`"
)]
pub trait IntoLockKeys {
    /// Returns the keys of a request; `None` passes it without a lock.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidKey`] if the request has no usable key.
    fn into_lock_keys(self) -> Result<Option<LockKeys>, InvalidKey>;
}

impl IntoLockKeys for LockKey {
    fn into_lock_keys(self) -> Result<Option<LockKeys>, InvalidKey> {
        Ok(Some(self.into()))
    }
}

impl IntoLockKeys for LockKeys {
    fn into_lock_keys(self) -> Result<Option<LockKeys>, InvalidKey> {
        Ok(Some(self))
    }
}

impl<T: IntoLockKeys> IntoLockKeys for Option<T> {
    fn into_lock_keys(self) -> Result<Option<LockKeys>, InvalidKey> {
        self.map_or(Ok(None), T::into_lock_keys)
    }
}

impl<T: IntoLockKeys> IntoLockKeys for Result<T, InvalidKey> {
    fn into_lock_keys(self) -> Result<Option<LockKeys>, InvalidKey> {
        self?.into_lock_keys()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn extracted<K: KeyExtractor>(by: &K) -> Result<Option<LockKeys>, InvalidKey> {
        let request = Request::get("/").body(()).expect("a valid request");
        by.extract(&request.into_parts().0)
    }

    /// As `LockLayer::by_fn` declares its closure.
    fn by_fn<F: Fn(&Parts) -> R, R: IntoLockKeys>(function: F) -> ByFn<F> {
        ByFn::new(function)
    }

    #[test]
    fn closure_result_of_each_type_is_keys() {
        let one: LockKeys = LockKey::new("/").into();
        let key = |request: &Parts| LockKey::new(request.uri.path());
        let keys = Ok(Some(one.clone()));
        assert_eq!(extracted(&by_fn(key)), keys);
        assert_eq!(
            extracted(&by_fn(|request| LockKeys::from(key(request)))),
            keys
        );
        assert_eq!(extracted(&by_fn(|request| Some(key(request)))), keys);
        assert_eq!(extracted(&by_fn(|request| Ok(key(request)))), keys);
        assert_eq!(extracted(&by_fn(|request| Ok(Some(key(request))))), keys);
        assert_eq!(extracted(&by_fn(|_| None::<LockKey>)), Ok(None));
        let invalid = by_fn(|request| {
            let key = key(request);
            LockKey::new("").validate()?;
            Ok(key)
        });
        assert_eq!(extracted(&invalid), Err(InvalidKey::Empty));
    }
}
