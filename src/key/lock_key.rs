//! The name of one lock.

#[cfg(not(feature = "test-util"))]
use std::collections::hash_map::RandomState;
use std::fmt;
#[cfg(feature = "test-util")]
use std::hash::BuildHasherDefault;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use smol_str::SmolStr;

use super::encode::{Reserved, are_hash_tags, cut, encode, unchanged};
use super::invalid::InvalidKey;
use super::parts::KeyParts;
use super::path::canonical;
use super::rare::{Permit, Rare};
use super::scratch;
use crate::Owner;

/// The name of one lock.
///
/// A key is built from text ([`LockKey::new`], or `From<&str>`), or from parts ([`LockKey::from_parts`]) if a
/// piece of it comes from a request. In both forms, different inputs are different keys. These characters are
/// percent-encoded:
///
/// - `%`, control characters, and bytes that are not UTF-8,
/// - in parts also `:`, `{` and `}`,
/// - in text also braces that form no Redis hash tag. The tag of `{user}:1` stays.
///
/// All other characters stay, spaces and letters of any script included. `order:42` is thus `order:42` in Redis.
///
/// A key has at most [`LockKey::MAX_LEN`] bytes. A longer key is cut and ends in the SHA-256 of the whole. An empty
/// text or an empty part makes an invalid key, which an acquire rejects with
/// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey). An empty id in a part thus never becomes one lock for all
/// requests. In text it does: `format!("order:{id}")` is the key `order:`.
///
/// ```
/// use tower_lock::LockKey;
///
/// assert_eq!(LockKey::from_parts(["account", "7"]), LockKey::new("account:7"));
/// assert_ne!(LockKey::from_parts(["a:b", "c"]), LockKey::from_parts(["a", "b:c"]));
/// ```
#[derive(Clone)]
pub struct LockKey {
    /// What is rare takes no space, because every lock that is held has its key twice.
    repr: Result<HashedText, Arc<Rare>>,
}

#[derive(Clone)]
struct HashedText {
    /// A short one needs no allocation; clones of a long one share it.
    text: SmolStr,
    /// Computed once: the lane table, the Redis connection and the shard all go by it.
    hash: u64,
}

/// The bits of a hash by which a table may be divided. They are those of the lock in the key of a permit, so that all
/// lanes of one lock are in one part.
const PART: u64 = 0xff << 24;

static SEED: LazyLock<Keyed> = LazyLock::new(Keyed::default);

#[cfg(not(feature = "test-util"))]
type Keyed = RandomState;

/// This hash is the same in each process, so that a simulation can be replayed.
#[cfg(feature = "test-util")]
type Keyed = BuildHasherDefault<std::hash::DefaultHasher>;

impl LockKey {
    /// The longest key, in bytes after encoding.
    pub const MAX_LEN: usize = 512;

    /// Creates the key of a name that the program chose, such as `order:42`.
    ///
    /// For pieces that come from a request use [`LockKey::from_parts`], which keeps them apart.
    #[must_use]
    pub fn new(name: impl AsRef<[u8]>) -> Self {
        let name = name.as_ref();
        if name.is_empty() {
            return Self::invalid(InvalidKey::Empty);
        }
        if let Some(text) = unchanged(name, Reserved::Braces)
            && text.len() <= Self::MAX_LEN
        {
            return Self::from_text(text);
        }
        let braces = if are_hash_tags(name) {
            Reserved::Controls
        } else {
            Reserved::Braces
        };
        let mut text = scratch::take();
        encode(name, braces, &mut text);
        if text.len() > Self::MAX_LEN && braces == Reserved::Controls {
            // The cut may fall between a brace and its partner.
            text.clear();
            encode(name, Reserved::Braces, &mut text);
        }
        Self::from_encoded(text)
    }

    /// Creates the key of several parts, joined by `:` after each was encoded.
    ///
    /// The parts may hold anything, binary included: `["a:b", "c"]` and `["a", "b:c"]` are
    /// different keys. Parts of one type are an array or a vector, and parts of several types are a tuple:
    ///
    /// ```
    /// use tower_lock::LockKey;
    ///
    /// let (shop, order) = ("berlin", 42);
    /// let key = LockKey::from_parts(("order", shop, order));
    /// assert_eq!(key, LockKey::from_parts(["order", "berlin", "42"]));
    /// ```
    #[must_use]
    pub fn from_parts<P: KeyParts>(parts: P) -> Self {
        let mut text = scratch::take();
        let mut index = 0;
        let encoded = parts.each(|part| {
            if part.is_empty() {
                return Err(InvalidKey::EmptyPart(index));
            }
            if index > 0 {
                text.push(':');
            }
            index += 1;
            encode(part, Reserved::Part, &mut text);
            Ok(())
        });
        if let Err(invalid) = encoded {
            return Self::invalid(invalid);
        }
        if text.is_empty() {
            return Self::invalid(InvalidKey::Empty);
        }
        Self::from_encoded(text)
    }

    /// Returns the key of [`LockLayer::by_path`](crate::LockLayer::by_path) for this path, for jobs that exclude
    /// requests.
    ///
    /// `path` is the path of a URL as a client sends it, from the first slash, without host and query. It is
    /// decoded once. A run of slashes then counts as one slash, and a slash at the end is removed, because middleware
    /// and proxies in front of a router do so. The key is `LockKey::from_parts([decoded])`, and the empty path is `/`.
    /// The key is invalid if the path has a `.` or `..` segment, or a `%` without two hexadecimal digits.
    ///
    /// ```
    /// use tower_lock::LockKey;
    ///
    /// let key = LockKey::from_path("/users/a@b.c");
    /// assert_eq!(LockKey::from_path("/users/a%40b.c"), key);
    /// assert_eq!(LockKey::from_path("//users//a@b.c/"), key);
    /// assert_eq!(LockKey::from_parts(["/users/a@b.c"]), key);
    /// assert!(LockKey::from_path("/users/%2e%2e").validate().is_err());
    /// ```
    #[must_use]
    pub fn from_path(path: impl AsRef<str>) -> Self {
        match canonical(path.as_ref()) {
            Ok(decoded) => Self::from_parts([decoded]),
            Err(invalid) => Self::invalid(invalid),
        }
    }

    /// Returns the key whose [`as_str`](Self::as_str) is `text`, as an operator copies it. A text that no key has is
    /// encoded as a name.
    #[cfg(feature = "dashboard")]
    pub(crate) fn from_shown(text: &str) -> Self {
        let is_shown = text.split('%').skip(1).all(is_after_percent)
            && !text.contains(char::is_control)
            && (1..=Self::MAX_LEN).contains(&text.len());
        match is_shown {
            true => Self::from_encoded(text.to_owned()),
            false => Self::new(text),
        }
    }

    fn from_encoded(mut text: String) -> Self {
        if text.len() > Self::MAX_LEN {
            cut(&mut text, Self::MAX_LEN);
        }
        let key = Self::from_text(&text);
        scratch::put_back(text, 2 * Self::MAX_LEN);
        key
    }

    /// Returns the key of an encoded text of at most [`MAX_LEN`](Self::MAX_LEN) bytes.
    fn from_text(text: &str) -> Self {
        let hash = SEED.hash_one(text);
        let text = text.into();
        Self {
            repr: Ok(HashedText { text, hash }),
        }
    }

    fn invalid(why: InvalidKey) -> Self {
        Self {
            repr: Err(Arc::new(Rare::Invalid(why))),
        }
    }

    /// Returns the key of the lane in which `owner` acquires a permit of this key. Permits of one key have one lane each,
    /// because they do not exclude each other.
    pub(crate) fn permit_of(&self, owner: Owner) -> Self {
        let of = self.stored().clone();
        // The id of a manager is random, and a simulation can be replayed.
        let own = SEED.hash_one((of.hash_code(), owner.number()));
        let hash = own & !PART | of.hash_code() & PART;
        Self {
            repr: Err(Arc::new(Rare::Permit(Permit { of, owner, hash }))),
        }
    }

    /// Returns `true` for the key of a lane of a permit.
    pub(crate) fn is_of_permit(&self) -> bool {
        self.permit().is_some()
    }

    /// Returns `true` for the key of a lane of a permit of `lock`.
    pub(crate) fn is_permit_of(&self, lock: &Self) -> bool {
        self.permit().is_some_and(|permit| permit.of == *lock)
    }

    #[inline]
    fn permit(&self) -> Option<&Permit> {
        match &self.repr {
            Ok(_) => None,
            Err(rare) => rare.permit(),
        }
    }

    /// Changes the key to the one that backends know.
    pub(crate) fn make_stored(&mut self) {
        if let Some(permit) = self.permit() {
            *self = permit.of.clone();
        }
    }

    /// Returns the key that backends and callers know: for the key of a permit, that of its lock.
    pub(crate) fn stored(&self) -> &Self {
        self.permit().map_or(self, |permit| &permit.of)
    }

    /// Returns the encoded name, which is empty for an invalid key. In Redis it follows the prefix.
    ///
    /// A key has no `Display`, because it can contain personal data that must not reach a log by accident.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.repr {
            Ok(name) => &name.text,
            Err(rare) => rare.as_str(),
        }
    }

    /// Checks that the key can be locked.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidKey`] if the key, or one of its parts, is empty, or the path of the key is invalid.
    #[inline]
    pub fn validate(&self) -> Result<(), InvalidKey> {
        match &self.repr {
            Ok(_) => Ok(()),
            Err(rare) => rare.validate(),
        }
    }

    /// A hash of the name, keyed per process so that clients cannot choose collisions.
    pub(crate) fn hash_code(&self) -> u64 {
        match &self.repr {
            Ok(name) => name.hash,
            Err(rare) => rare.hash_code(),
        }
    }
}

/// Returns `true` if an encoded text can continue like this after a `%`: the digits of a byte, or the mark of a cut.
#[cfg(feature = "dashboard")]
fn is_after_percent(rest: &str) -> bool {
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'A'..=b'F');
    rest.starts_with('#')
        || rest
            .as_bytes()
            .get(..2)
            .is_some_and(|two| two.iter().all(is_digit))
}

impl PartialEq for LockKey {
    // This function is not inlined: with a copy of it in each lookup, the compiler would inline no lookup.
    #[inline(never)]
    fn eq(&self, other: &Self) -> bool {
        match (&self.repr, &other.repr) {
            (Ok(this), Ok(that)) => this.hash == that.hash && this.text == that.text,
            (Err(this), Err(that)) => this.is(that),
            _ => false,
        }
    }
}

impl Eq for LockKey {}

impl Hash for LockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash_code());
    }
}

/// By the bytes of the encoded name: the order in which several keys are locked, the same in
/// every process.
impl Ord for LockKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl PartialOrd for LockKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.repr {
            Ok(name) => write!(f, "LockKey({})", name.text),
            Err(rare) => match &**rare {
                Rare::Invalid(why) => write!(f, "LockKey(invalid: {why})"),
                Rare::Permit(permit) => permit.of.fmt(f),
            },
        }
    }
}

macro_rules! from_names {
    ($($name:ty),*) => {$(
        impl From<$name> for LockKey {
            fn from(name: $name) -> Self {
                Self::new(name)
            }
        }
    )*};
}
from_names!(&str, String, &String);

impl From<&LockKey> for LockKey {
    fn from(key: &LockKey) -> Self {
        key.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_names_are_unchanged() {
        for name in ["order:42", "{user}:1", "müller & söhne", "a/b", "日本"] {
            assert_eq!(LockKey::new(name).as_str(), name);
        }
        assert_eq!(LockKey::from_parts(["a:b", "c"]).as_str(), "a%3Ab:c");
        assert_eq!(LockKey::new("50%").as_str(), "50%25");
        assert_eq!(LockKey::new("a{b").as_str(), "a%7Bb");
        assert_eq!(LockKey::new("{}").as_str(), "%7B%7D");
        assert_eq!(LockKey::new(b"\xff\n").as_str(), "%FF%0A");
    }

    #[test]
    fn long_key_is_prefix_and_hash_of_whole() {
        let million = LockKey::new(vec![b'x'; 1_000_000]);
        assert_eq!(million.as_str().len(), LockKey::MAX_LEN);
        assert!(million.as_str().starts_with("xxxxxxxx"));
        let tagged = LockKey::new(format!("{}{{tag}}", "x".repeat(600)));
        assert!(!tagged.as_str().contains('{'));
        assert_ne!(LockKey::new(million.as_str()), million);
    }

    #[test]
    fn empty_keys_and_parts_are_rejected_by_name() {
        assert_eq!(LockKey::new("").validate(), Err(InvalidKey::Empty));
        assert_eq!(
            LockKey::from_parts(["account", ""]).validate(),
            Err(InvalidKey::EmptyPart(1))
        );
        assert_eq!(
            LockKey::from_parts::<[&str; 0]>([]).validate(),
            Err(InvalidKey::Empty)
        );
        assert_eq!(
            LockKey::from_parts((7, "")).validate(),
            Err(InvalidKey::EmptyPart(1))
        );
    }
}
