//! The reasons why a key cannot be locked.

use std::borrow::Cow;

/// The most keys of one acquire.
pub(super) const MAX_KEYS: usize = 16;

/// The reason why a key cannot be locked.
///
/// Its text is the `detail` of the response that the client receives, unless the program is wrong. The text
/// contains no value of the request. The text of a variant names the value, such as ``header `x-account` ``.
///
/// ```
/// use tower_lock::LockKey;
/// use tower_lock::keys::InvalidKey;
///
/// let key = LockKey::from_parts(["account", ""]);
/// assert_eq!(key.validate(), Err(InvalidKey::EmptyPart(1)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The key has no characters, or no parts.
    #[error("the identifier of the resource is empty")]
    Empty,
    /// A part has no characters: the one with this number, counted from 0.
    #[error("a value that identifies the resource is empty")]
    EmptyPart(usize),
    /// An acquire names no key at all.
    #[error("no resource is identified")]
    NoKeys,
    /// An acquire names this number of different keys, more than [`LockKeys::MAX`](crate::LockKeys::MAX).
    #[error("{0} resources are identified, at most {max} are allowed", max = MAX_KEYS)]
    TooMany(usize),
    /// The request lacks the value that the key contains.
    #[error("the request has no {0}")]
    Missing(Cow<'static, str>),
    /// The request has the value of the key more than once, and a key can contain only one of them.
    #[error("the request has more than one {0}")]
    Ambiguous(Cow<'static, str>),
    /// The value of the key is empty.
    #[error("the {0} of the request is empty")]
    EmptyValue(Cow<'static, str>),
    /// The value of the key is not percent-encoded UTF-8.
    #[error("the {0} of the request is not percent-encoded UTF-8")]
    Undecodable(Cow<'static, str>),
    /// The value of the key does not have the required form, such as a number or a UUID.
    #[error("the {0} of the request has an invalid format")]
    Malformed(Cow<'static, str>),
    /// The path has a segment `.` or `..`, also in percent-encoding.
    #[error("the path of the request has a `.` or `..` segment; send the resolved path")]
    DotSegment,
    /// No route of the router matches the request. The response is 404, without the inner service.
    ///
    /// Only the constructors for path parameters return it.
    #[error("no route matches the path of the request")]
    NoRoute,
    /// The program is wrong: no request to this route has what the key contains.
    ///
    /// The response is 500 `lock-misconfigured`, with
    /// [`ErrorKind::Misconfigured`](crate::ErrorKind::Misconfigured). The layer logs the text once: the mistake and its remedy.
    /// The client does not receive it.
    #[error("{0}")]
    Setup(Cow<'static, str>),
}
