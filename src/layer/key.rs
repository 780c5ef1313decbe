//! From the head of a request to the keys it must hold.

use std::any::type_name;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use http::HeaderName;
use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::path::normalise;
use crate::{InvalidKey, LockKey, LockKeys};

/// Says which keys a request must hold while it is served.
///
/// Implemented by the extractors behind [`LockLayer`](crate::LockLayer)'s constructors, and by
/// every closure of the same shape. Parts of a key that come from a request belong into
/// [`LockKey::from_parts`], which keeps them apart.
///
/// ```
/// use http::request::Parts;
/// use tower_lock::{InvalidKey, LockKey, LockKeys, LockLayer, LockManager};
///
/// /// One lock per tenant and path; requests without a tenant are not locked.
/// fn tenant_and_path(request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
///     let Some(tenant) = request.headers.get("x-tenant") else {
///         return Ok(None);
///     };
///     let parts = ["tenant".as_bytes(), tenant.as_bytes(), request.uri.path().as_bytes()];
///     Ok(Some(LockKey::from_parts(parts).into()))
/// }
///
/// let layer = LockLayer::new(LockManager::in_memory(), tenant_and_path);
/// # drop(layer);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which locks a request needs",
    label = "not a `KeyExtractor`",
    note = "use `LockLayer::by_path` or one of its siblings, or pass a closure with its argument's \
            type written out: `|request: &http::request::Parts| -> Result<Option<LockKeys>, \
            InvalidKey>`"
)]
pub trait KeyExtractor {
    /// The keys of this request; `None` lets it pass without a lock.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if the request lacks what the key is made of, or has it in a form that
    /// cannot be read. The request is answered with 400 and never reaches the inner service.
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey>;

    /// What the service calls. Only for [`ByPathParam`]: axum's extractors want `&mut`, and a
    /// copy of all extensions to satisfy them costs more than the lock.
    #[doc(hidden)]
    fn extract_in_place(&self, request: &mut Parts) -> Result<Option<LockKeys>, InvalidKey> {
        self.extract(request)
    }
}

impl<F> KeyExtractor for F
where
    F: Fn(&Parts) -> Result<Option<LockKeys>, InvalidKey>,
{
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        self(request)
    }
}

/// Something that knows which locks it takes: a command in a request's body, a tenant in its
/// extensions.
///
/// For [`Locked`](crate::Locked) and [`LockLayer::by_extension`](crate::LockLayer::by_extension).
/// Several keys are taken all or none, in an order that cannot deadlock.
///
/// ```
/// use tower_lock::{LockKey, LockKeys, LockTarget};
///
/// struct Transfer {
///     from: String,
///     to: String,
/// }
///
/// impl LockTarget for Transfer {
///     fn lock_keys(&self) -> LockKeys {
///         LockKeys::from([
///             LockKey::from_parts(["account", &self.from]),
///             LockKey::from_parts(["account", &self.to]),
///         ])
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which locks it takes",
    label = "not a `LockTarget`",
    note = "write `impl LockTarget for ...` for your own type, with `lock_keys` returning e.g. \
            `LockKey::from_parts([\"account\", &self.id]).into()`; `Json`, `Form`, `Query`, `Path` \
            and `Extension` pass it on from the type inside"
)]
pub trait LockTarget {
    /// The keys to hold.
    fn lock_keys(&self) -> LockKeys;
}

impl LockTarget for LockKey {
    fn lock_keys(&self) -> LockKeys {
        self.into()
    }
}

impl LockTarget for LockKeys {
    fn lock_keys(&self) -> LockKeys {
        self.clone()
    }
}

/// The key of [`LockLayer::by_path`](crate::LockLayer::by_path).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ByPath;

impl KeyExtractor for ByPath {
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        let path = normalise(original_path(request)).map_err(|_| undecodable("path"))?;
        Ok(Some(LockKey::from_parts([path.as_ref()]).into()))
    }
}

/// The path the client asked for: a nested axum router strips its prefix from the request's.
fn original_path(request: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(original) = request.extensions.get::<axum::extract::OriginalUri>() {
        return original.path();
    }
    request.uri.path()
}

/// The key of [`LockLayer::by_path_param`](crate::LockLayer::by_path_param).
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
#[derive(Debug, Clone)]
pub struct ByPathParam {
    name: Cow<'static, str>,
}

#[cfg(feature = "axum")]
impl ByPathParam {
    pub(super) fn new(name: Cow<'static, str>) -> Self {
        Self { name }
    }
}

#[cfg(feature = "axum")]
impl KeyExtractor for ByPathParam {
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        let (mut copy, ()) = http::Request::new(()).into_parts();
        copy.extensions = request.extensions.clone();
        self.extract_in_place(&mut copy)
    }

    fn extract_in_place(&self, request: &mut Parts) -> Result<Option<LockKeys>, InvalidKey> {
        use axum::extract::rejection::RawPathParamsRejection;
        use axum::extract::{FromRequestParts, RawPathParams};

        let what = || format!("path parameter `{}`", self.name);
        let params = match ready_at_once(RawPathParams::from_request_parts(request, &())) {
            Ok(params) => params,
            Err(RawPathParamsRejection::InvalidUtf8InPathParam(_)) => {
                return Err(undecodable(what()));
            }
            Err(_) => return Err(missing(what())),
        };
        let mut named = params.iter().filter(|(name, _)| *name == self.name);
        let (_, value) = named.next().ok_or_else(|| missing(what()))?;
        if named.next().is_some() {
            return Err(ambiguous(what()));
        }
        Ok(Some(LockKey::from_parts([&*self.name, value]).into()))
    }
}

/// The output of a future that never waits.
#[cfg(feature = "axum")]
fn ready_at_once<F: Future>(future: F) -> F::Output {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => unreachable!("axum reads path parameters without waiting"),
    }
}

/// The key of [`LockLayer::by_header`](crate::LockLayer::by_header).
#[derive(Debug, Clone)]
pub struct ByHeader {
    name: HeaderName,
}

impl ByHeader {
    pub(super) fn new(name: HeaderName) -> Self {
        Self { name }
    }
}

impl KeyExtractor for ByHeader {
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        let what = || format!("header `{}`", self.name);
        let mut values = request.headers.get_all(&self.name).iter();
        let value = values.next().ok_or_else(|| missing(what()))?;
        if values.next().is_some() {
            return Err(ambiguous(what()));
        }
        let parts = [self.name.as_str().as_bytes(), value.as_bytes()];
        Ok(Some(LockKey::from_parts(parts).into()))
    }
}

/// The key of [`LockLayer::by_query`](crate::LockLayer::by_query).
#[derive(Debug, Clone)]
pub struct ByQuery {
    name: Cow<'static, str>,
}

impl ByQuery {
    pub(super) fn new(name: Cow<'static, str>) -> Self {
        Self { name }
    }
}

impl KeyExtractor for ByQuery {
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        let what = || format!("query parameter `{}`", self.name);
        let mut values = request
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .filter(|(name, _)| *form_decode(name) == *self.name.as_bytes())
            .map(|(_, value)| value);
        let value = values.next().ok_or_else(|| missing(what()))?;
        if values.next().is_some() {
            return Err(ambiguous(what()));
        }
        let value = form_decode(value);
        std::str::from_utf8(&value).map_err(|_| undecodable(what()))?;
        Ok(Some(
            LockKey::from_parts([self.name.as_bytes(), &value]).into(),
        ))
    }
}

/// `application/x-www-form-urlencoded`, byte for byte: the usual crate replaces what is not UTF-8
/// by U+FFFD, which would make different values one.
fn form_decode(text: &str) -> Cow<'_, [u8]> {
    if text.contains(['+', '%']) {
        Cow::Owned(percent_decode_str(&text.replace('+', " ")).collect())
    } else {
        Cow::Borrowed(text.as_bytes())
    }
}

/// The key of [`LockLayer::by_extension`](crate::LockLayer::by_extension).
pub struct ByExtension<T> {
    target: PhantomData<fn() -> T>,
}

impl<T> ByExtension<T> {
    pub(super) fn new() -> Self {
        Self {
            target: PhantomData,
        }
    }
}

impl<T> Clone for ByExtension<T> {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for ByExtension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByExtension<{}>", type_name::<T>())
    }
}

impl<T> KeyExtractor for ByExtension<T>
where
    T: LockTarget + Send + Sync + 'static,
{
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        match request.extensions.get::<T>() {
            Some(target) => Ok(Some(target.lock_keys())),
            None => Err(missing(
                "extension to lock by; a layer outside of this one inserts it",
            )),
        }
    }
}

fn missing(what: impl Into<Cow<'static, str>>) -> InvalidKey {
    InvalidKey::Missing { what: what.into() }
}

fn undecodable(what: impl Into<Cow<'static, str>>) -> InvalidKey {
    InvalidKey::Undecodable { what: what.into() }
}

fn ambiguous(what: impl Into<Cow<'static, str>>) -> InvalidKey {
    InvalidKey::Ambiguous { what: what.into() }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(request: http::request::Builder) -> Parts {
        request.body(()).expect("a valid request").into_parts().0
    }

    fn one(name: &str, value: &str) -> Result<Option<LockKeys>, InvalidKey> {
        Ok(Some(LockKey::from_parts([name, value]).into()))
    }

    #[test]
    fn by_path_normalises_and_ignores_the_query() {
        let key = |uri| ByPath.extract(&parts(Request::get(uri)));
        assert_eq!(key("/a%42?x=1"), key("/aB"));
        assert_eq!(key("http://host/a"), key("/a?b"));
        assert_ne!(key("/a%2Fb"), key("/a/b"));
        assert_eq!(
            key("/%zz"),
            Err(InvalidKey::Undecodable {
                what: "path".into()
            })
        );
    }

    #[cfg(feature = "axum")]
    #[test]
    fn by_path_uses_the_path_before_nesting() {
        let mut request = parts(Request::get("/42"));
        let original = "/orders/42".parse().expect("a valid path");
        request
            .extensions
            .insert(axum::extract::OriginalUri(original));
        assert_eq!(
            ByPath.extract(&request),
            Ok(Some(LockKey::from_parts(["/orders/42"]).into()))
        );
    }

    #[test]
    fn by_header_wants_the_header_exactly_once() {
        let extract =
            |request| ByHeader::new(HeaderName::from_static("x-id")).extract(&parts(request));
        let what = || "header `x-id`".into();
        assert_eq!(
            extract(Request::get("/").header("X-Id", "7")),
            one("x-id", "7")
        );
        assert_eq!(
            extract(Request::get("/")),
            Err(InvalidKey::Missing { what: what() })
        );
        assert_eq!(
            extract(Request::get("/").header("x-id", "7").header("x-id", "8")),
            Err(InvalidKey::Ambiguous { what: what() })
        );
        let bytes = extract(Request::get("/").header("x-id", &b"\xff"[..]));
        assert_eq!(
            bytes,
            Ok(Some(LockKey::from_parts([b"x-id", &b"\xff"[..]]).into()))
        );
    }

    #[test]
    fn by_query_decodes_names_and_values_as_a_form() {
        let extract = |uri: &str| ByQuery::new("id".into()).extract(&parts(Request::get(uri)));
        let what = || "query parameter `id`".into();
        assert_eq!(extract("/?a=b&id=x+y%2B%41"), one("id", "x y+A"));
        assert_eq!(extract("/?%69d=7"), one("id", "7"));
        assert_eq!(extract("/?id=a=b"), one("id", "a=b"));
        assert_eq!(extract("/?id=50%"), one("id", "50%"));
        assert_eq!(
            extract("/?ID=7&idd=1"),
            Err(InvalidKey::Missing { what: what() })
        );
        assert_eq!(extract("/"), Err(InvalidKey::Missing { what: what() }));
        assert_eq!(
            extract("/?id=7&i%64=7"),
            Err(InvalidKey::Ambiguous { what: what() })
        );
        assert_eq!(
            extract("/?id=%FF"),
            Err(InvalidKey::Undecodable { what: what() })
        );
    }

    #[test]
    fn an_empty_value_makes_a_key_that_nobody_can_lock() {
        let keys = ByQuery::new("id".into())
            .extract(&parts(Request::get("/?id=")))
            .expect("the parameter is there")
            .expect("it makes a key");
        assert_eq!(keys.validate(), Err(InvalidKey::EmptyPart { index: 1 }));
    }

    #[test]
    fn by_extension_asks_the_target() {
        let mut request = parts(Request::get("/"));
        let by_key = ByExtension::<LockKey>::new();
        assert!(matches!(
            by_key.extract(&request),
            Err(InvalidKey::Missing { .. })
        ));
        request.extensions.insert(LockKey::new("tenant:7"));
        assert_eq!(by_key.extract(&request), one("tenant", "7"));
    }

    #[test]
    fn closures_are_extractors() {
        let by_method = |request: &Parts| Ok(Some(request.method.as_str().into()));
        let keys = by_method.extract(&parts(Request::get("/")));
        assert_eq!(keys, Ok(Some(LockKeys::from("GET"))));
    }
}
