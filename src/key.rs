//! What is locked: the names of locks, encoded so that no input can alias another.

use std::borrow::Cow;
use std::collections::HashMap;
#[cfg(not(feature = "test-util"))]
use std::collections::hash_map::RandomState;
use std::fmt::{self, Write as _};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::LazyLock;

use sha2::{Digest, Sha256};
use smol_str::SmolStr;

/// The name of one lock.
///
/// Built from text ([`LockKey::new`], or `From<&str>`) or, whenever a piece comes from a request,
/// from parts ([`LockKey::from_parts`]). Each of the two encodings is injective: different inputs are
/// different keys. Control characters, bytes that are not UTF-8, and `%` are percent-encoded; inside parts
/// also `:`, `{` and `}`; in plain text braces stay where they form Redis hash tags
/// (`{user}:1`) and are encoded where they do not. Everything else, spaces and letters of any
/// script included, stays as it is, so `order:42` is `order:42` in Redis too.
///
/// A key is at most [`LockKey::MAX_LEN`] bytes long: a longer one is cut and ends in the SHA-256
/// of the whole. An empty key, or an empty part, makes a key that every acquire refuses with
/// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey): a missing id must never become a lock
/// that everybody shares.
///
/// ```
/// use tower_lock::LockKey;
///
/// assert_eq!(LockKey::from_parts(["account", "7"]), LockKey::new("account:7"));
/// assert_ne!(LockKey::from_parts(["a:b", "c"]), LockKey::from_parts(["a", "b:c"]));
/// ```
#[derive(Clone)]
pub struct LockKey {
    /// Boxed: it is rare, and every lock that is held has its key twice.
    repr: Result<Name, Box<InvalidKey>>,
}

#[derive(Clone)]
struct Name {
    /// A short one needs no allocation; clones of a long one share it.
    text: SmolStr,
    /// Computed once: the lane table, the Redis connection and the shard all go by it.
    hash: u64,
}

#[cfg(not(feature = "test-util"))]
type Keyed = RandomState;

/// This hash is the same in each process, so that a simulation can be replayed.
#[cfg(feature = "test-util")]
type Keyed = BuildHasherDefault<std::hash::DefaultHasher>;

/// Why a key cannot be locked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The key has no characters, or no parts.
    #[error("the lock key is empty")]
    Empty,
    /// One of the parts has no characters.
    #[error("part {index} of the lock key is empty")]
    EmptyPart {
        /// Which part, counted from 0.
        index: usize,
    },
    /// An acquire names no key at all.
    #[error("no lock key was given")]
    NoKeys,
    /// An acquire names more keys than [`LockKeys::MAX`].
    #[error("{count} lock keys were given, at most {max} are allowed", max = LockKeys::MAX)]
    TooMany {
        /// How many different keys there were.
        count: usize,
    },
    /// The request lacks what the key is made of.
    #[error("the request has no {what}")]
    Missing {
        /// What was looked for, such as ``header `x-account` ``.
        what: Cow<'static, str>,
    },
    /// The request has more than one of what the key is made of, and only one of them could be
    /// locked.
    #[error("the request has more than one {what}")]
    Ambiguous {
        /// What was found, such as ``query parameter `account` ``.
        what: Cow<'static, str>,
    },
    /// The request has what the key is made of, in a form that cannot be read.
    #[error("the {what} of the request cannot be decoded")]
    Undecodable {
        /// What was looked at, such as ``query parameter `account` ``.
        what: Cow<'static, str>,
    },
}

impl LockKey {
    /// The longest key, in bytes after encoding.
    pub const MAX_LEN: usize = 512;

    /// The key of a name the program chose, such as `order:42`.
    ///
    /// For pieces that come from a request use [`LockKey::from_parts`], which keeps them apart.
    #[must_use]
    pub fn new(name: impl AsRef<[u8]>) -> Self {
        let name = name.as_ref();
        if name.is_empty() {
            return Self::invalid(InvalidKey::Empty);
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

    /// The key of several parts, joined by `:` after each was encoded.
    ///
    /// The parts may hold anything, binary included: `["a:b", "c"]` and `["a", "b:c"]` are
    /// different keys.
    #[must_use]
    pub fn from_parts<I>(parts: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let mut text = scratch::take();
        for (index, part) in parts.into_iter().enumerate() {
            let part = part.as_ref();
            if part.is_empty() {
                return Self::invalid(InvalidKey::EmptyPart { index });
            }
            if index > 0 {
                text.push(':');
            }
            encode(part, Reserved::Part, &mut text);
        }
        if text.is_empty() {
            return Self::invalid(InvalidKey::Empty);
        }
        Self::from_encoded(text)
    }

    fn from_encoded(mut text: String) -> Self {
        if text.len() > Self::MAX_LEN {
            cut(&mut text);
        }
        static SEED: LazyLock<Keyed> = LazyLock::new(Keyed::default);
        let hash = SEED.hash_one(text.as_str());
        let name = Name {
            text: text.as_str().into(),
            hash,
        };
        scratch::put_back(text);
        Self { repr: Ok(name) }
    }

    fn invalid(why: InvalidKey) -> Self {
        Self {
            repr: Err(Box::new(why)),
        }
    }

    /// The encoded name, as it stands in Redis after the prefix. Empty for an invalid key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.repr {
            Ok(name) => &name.text,
            Err(_) => "",
        }
    }

    /// Whether the key can be locked.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if the key, or one of its parts, is empty.
    pub fn validate(&self) -> Result<(), InvalidKey> {
        match &self.repr {
            Ok(_) => Ok(()),
            Err(why) => Err(InvalidKey::clone(why)),
        }
    }

    /// A hash of the name, keyed per process so that clients cannot choose collisions.
    pub(crate) fn hash_code(&self) -> u64 {
        match &self.repr {
            Ok(name) => name.hash,
            Err(_) => 0,
        }
    }
}

/// Where a key is spelled before its length is known: a request then allocates for it once.
mod scratch {
    use std::cell::Cell;

    thread_local! {
        static TEXT: Cell<String> = const { Cell::new(String::new()) };
    }

    /// An empty string. Building a key while another one is built gets a fresh one.
    pub(super) fn take() -> String {
        TEXT.try_with(Cell::take).unwrap_or_default()
    }

    pub(super) fn put_back(mut text: String) {
        // One huge name must not cost every thread its size for ever.
        if text.capacity() <= 2 * super::LockKey::MAX_LEN {
            text.clear();
            TEXT.try_with(|scratch| scratch.set(text)).unwrap_or(());
        }
    }
}

/// What is percent-encoded besides `%`, control characters and bytes that are not UTF-8.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reserved {
    Controls,
    Braces,
    Part,
}

impl Reserved {
    fn holds(self, c: char) -> bool {
        match c {
            '%' => true,
            '{' | '}' => self != Self::Controls,
            ':' => self == Self::Part,
            c => c.is_control(),
        }
    }

    /// What comes before the first character that is encoded, that character, and what follows it.
    fn split(self, text: &str) -> Option<(&str, &str, &str)> {
        let at = text.find(|c| self.holds(c))?;
        let (plain, rest) = text.split_at(at);
        let end = rest.chars().next().map_or(0, char::len_utf8);
        let (escaped, rest) = rest.split_at(end);
        Some((plain, escaped, rest))
    }
}

fn encode(bytes: &[u8], reserved: Reserved, out: &mut String) {
    // Most names have nothing to encode.
    let is_plain = |&byte: &u8| byte.is_ascii() && !reserved.holds(byte.into());
    if let Ok(text) = str::from_utf8(bytes)
        && bytes.iter().all(is_plain)
    {
        out.push_str(text);
        return;
    }
    for chunk in bytes.utf8_chunks() {
        let mut text = chunk.valid();
        while let Some((plain, escaped, rest)) = reserved.split(text) {
            out.push_str(plain);
            escape_bytes(escaped.as_bytes(), out);
            text = rest;
        }
        out.push_str(text);
        escape_bytes(chunk.invalid(), out);
    }
}

fn escape_bytes(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        write!(out, "%{byte:02X}").expect("BUG: writing to a string cannot fail");
    }
}

/// Whether all braces come in closed, non-empty, unnested pairs. Only then do a key and its
/// Redisson channel hash to one slot of a Redis Cluster.
fn are_hash_tags(name: &[u8]) -> bool {
    let mut opened_at = None;
    for (at, byte) in name.iter().enumerate() {
        match (byte, opened_at) {
            (b'{', None) => opened_at = Some(at),
            (b'}', Some(open)) if at > open + 1 => opened_at = None,
            (b'{' | b'}', _) => return false,
            _ => {}
        }
    }
    opened_at.is_none()
}

/// Cuts an encoded key to its bound: a readable prefix, then the SHA-256 of the whole.
///
/// `%#` joins them: in encoded text `%` is always followed by two hex digits, so no shorter key
/// can spell a cut one.
fn cut(text: &mut String) {
    const MARK: &str = "%#";
    const HEX_LEN: usize = 64;
    let digest = Sha256::digest(text.as_bytes());
    let mut end = LockKey::MAX_LEN - MARK.len() - HEX_LEN;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push_str(MARK);
    for byte in digest {
        write!(text, "{byte:02x}").expect("BUG: writing to a string cannot fail");
    }
}

impl PartialEq for LockKey {
    fn eq(&self, other: &Self) -> bool {
        match (&self.repr, &other.repr) {
            (Ok(this), Ok(that)) => this.hash == that.hash && this.text == that.text,
            (Err(this), Err(that)) => this == that,
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

/// A map by key, which takes the hash that the key carries.
pub(crate) type KeyMap<V> = HashMap<LockKey, V, BuildHasherDefault<Prehashed>>;

#[derive(Debug, Default)]
pub(crate) struct Prehashed(u64);

impl Hasher for Prehashed {
    fn write(&mut self, _: &[u8]) {
        debug_assert!(false, "BUG: keys hash themselves as one u64");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
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
            Err(why) => write!(f, "LockKey(invalid: {why})"),
        }
    }
}

impl From<&str> for LockKey {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for LockKey {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

impl From<&String> for LockKey {
    fn from(name: &String) -> Self {
        Self::new(name)
    }
}

impl From<&LockKey> for LockKey {
    fn from(key: &LockKey) -> Self {
        key.clone()
    }
}

/// The keys of one acquire: sorted, without duplicates, taken all or none.
///
/// Sorted, so that two acquires that share keys can never wait for each other in a circle.
/// At least one key and at most [`LockKeys::MAX`]; otherwise the acquire fails with
/// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey).
#[derive(Clone, PartialEq, Eq)]
pub struct LockKeys {
    keys: Keys,
}

#[derive(Clone, PartialEq, Eq)]
enum Keys {
    /// The usual case, without an allocation for the list.
    One(LockKey),
    /// None, or several in ascending order.
    Many(Vec<LockKey>),
}

impl LockKeys {
    /// The most keys of one acquire.
    pub const MAX: usize = 16;

    /// The keys in the order in which they are locked.
    #[must_use]
    pub fn as_slice(&self) -> &[LockKey] {
        match &self.keys {
            Keys::One(key) => std::slice::from_ref(key),
            Keys::Many(keys) => keys,
        }
    }

    /// Moves the keys out and leaves none.
    pub(crate) fn take(&mut self) -> Self {
        let none = Keys::Many(Vec::new());
        let keys = std::mem::replace(&mut self.keys, none);
        Self { keys }
    }

    /// Whether every key can be locked and their number is within bounds.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] naming the first thing that is wrong.
    pub fn validate(&self) -> Result<(), InvalidKey> {
        match self.as_slice() {
            [] => Err(InvalidKey::NoKeys),
            keys if keys.len() > Self::MAX => Err(InvalidKey::TooMany { count: keys.len() }),
            keys => keys.iter().try_for_each(LockKey::validate),
        }
    }
}

impl fmt::Debug for LockKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl<K: Into<LockKey>> FromIterator<K> for LockKeys {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut keys: Vec<LockKey> = keys.into_iter().map(Into::into).collect();
        keys.sort_unstable();
        keys.dedup();
        let keys = match <[LockKey; 1]>::try_from(keys) {
            Ok([key]) => Keys::One(key),
            Err(keys) => Keys::Many(keys),
        };
        Self { keys }
    }
}

impl From<&LockKeys> for LockKeys {
    fn from(keys: &LockKeys) -> Self {
        keys.clone()
    }
}

impl<K: Into<LockKey>, const N: usize> From<[K; N]> for LockKeys {
    fn from(keys: [K; N]) -> Self {
        keys.into_iter().collect()
    }
}

impl<K: Into<LockKey>> From<Vec<K>> for LockKeys {
    fn from(keys: Vec<K>) -> Self {
        keys.into_iter().collect()
    }
}

macro_rules! one_key {
    ($($source:ty),*) => {$(
        impl From<$source> for LockKeys {
            fn from(key: $source) -> Self {
                Self { keys: Keys::One(key.into()) }
            }
        }
    )*};
}

one_key!(LockKey, &LockKey, &str, String, &String);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_are_encoded_injectively(
            a in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..6), 1..4),
            b in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..6), 1..4),
        ) {
            prop_assert_eq!(LockKey::from_parts(&a) == LockKey::from_parts(&b), a == b);
        }

        #[test]
        fn close_parts_are_encoded_injectively(
            a in prop::collection::vec("[ab:%{}3A]{1,3}", 1..4),
            b in prop::collection::vec("[ab:%{}3A]{1,3}", 1..4),
        ) {
            prop_assert_eq!(LockKey::from_parts(&a) == LockKey::from_parts(&b), a == b);
        }

        #[test]
        fn names_are_encoded_injectively(a in "[a:%{}7BD#]{1,6}", b in "[a:%{}7BD#]{1,6}") {
            prop_assert_eq!(LockKey::new(&a) == LockKey::new(&b), a == b);
        }

        #[test]
        fn long_names_are_encoded_injectively(
            a in prop::collection::vec(any::<u8>(), 500..600),
            b in prop::collection::vec(any::<u8>(), 500..600),
        ) {
            prop_assert_eq!(LockKey::new(&a) == LockKey::new(&b), a == b);
        }

        #[test]
        fn every_key_is_bounded_and_free_of_controls(
            bytes in prop::collection::vec(any::<u8>(), 1..2000),
        ) {
            for key in [LockKey::new(&bytes), LockKey::from_parts([&bytes])] {
                prop_assert!(key.as_str().len() <= LockKey::MAX_LEN);
                prop_assert!(!key.as_str().is_empty());
                prop_assert!(!key.as_str().chars().any(char::is_control));
            }
        }

        #[test]
        fn braces_that_remain_are_one_hash_tag_for_key_and_channel(name in "[ab{}]{1,12}") {
            let key = LockKey::new(&name);
            let text = key.as_str();
            if let Some(open) = text.find('{') {
                let close = text[open..].find('}').map(|at| at + open);
                prop_assert!(close.is_some_and(|close| close > open + 1));
            } else {
                let closes = text.contains('}');
                prop_assert!(!closes);
            }
        }

        #[test]
        fn keys_of_an_acquire_are_sorted_and_unique(names in prop::collection::vec("[a-d]{1,2}", 0..20)) {
            let keys: LockKeys = names.iter().collect();
            prop_assert!(keys.as_slice().windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(names.iter().all(|name| keys.as_slice().contains(&LockKey::new(name))));
        }
    }

    #[test]
    fn readable_names_stay_as_they_are() {
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
    fn a_long_key_is_a_prefix_and_the_hash_of_the_whole() {
        let million = LockKey::new(vec![b'x'; 1_000_000]);
        assert_eq!(million.as_str().len(), LockKey::MAX_LEN);
        assert!(million.as_str().starts_with("xxxxxxxx"));
        let tagged = LockKey::new(format!("{}{{tag}}", "x".repeat(600)));
        assert!(!tagged.as_str().contains('{'));
        assert_ne!(LockKey::new(million.as_str()), million);
    }

    #[test]
    fn empty_keys_and_parts_are_refused_by_name() {
        assert_eq!(LockKey::new("").validate(), Err(InvalidKey::Empty));
        assert_eq!(
            LockKey::from_parts(["account", ""]).validate(),
            Err(InvalidKey::EmptyPart { index: 1 })
        );
        assert_eq!(
            LockKey::from_parts::<[&str; 0]>([]).validate(),
            Err(InvalidKey::Empty)
        );
        assert_eq!(
            LockKeys::from(Vec::<LockKey>::new()).validate(),
            Err(InvalidKey::NoKeys)
        );
        let many: LockKeys = (0..17).map(|n| n.to_string()).collect();
        assert_eq!(many.validate(), Err(InvalidKey::TooMany { count: 17 }));
        let same: LockKeys = (0..17).map(|_| "same").collect();
        assert_eq!(same.as_slice().len(), 1);
    }
}
