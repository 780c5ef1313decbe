//! The path of the request as the key.

use http::request::Parts;

use crate::layer::KeyExtractor;
use crate::{InvalidKey, LockKey, LockKeys};

/// The key of [`LockLayer::by_path`](crate::LockLayer::by_path).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ByPath;

impl KeyExtractor for ByPath {
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        let key = LockKey::from_path(original_path(request));
        key.validate()?;
        Ok(Some(key.into()))
    }
}

/// Returns the path that the client sent: a nested axum router removes its prefix from the path of the request.
fn original_path(request: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(original) = request.extensions.get::<axum::extract::OriginalUri>() {
        return original.path();
    }
    request.uri.path()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn parts(request: http::request::Builder) -> Parts {
        request.body(()).expect("a valid request").into_parts().0
    }

    #[test]
    fn by_path_ignores_host_and_query() {
        let key = |uri| ByPath.extract(&parts(Request::get(uri)));
        assert_eq!(key("/a%42?x=1"), key("/aB"));
        assert_eq!(key("http://host/a"), key("/a?b"));
        assert_eq!(key("/a%40b"), Ok(Some(LockKey::from_path("/a@b").into())));
        let broken = InvalidKey::Undecodable("path".into());
        assert_eq!(key("/%zz"), Err(broken));
        assert_eq!(key("/a/%2e%2e"), Err(InvalidKey::DotSegment));
    }

    #[cfg(feature = "axum")]
    #[test]
    fn by_path_in_nested_router_is_original_path() {
        let mut request = parts(Request::get("/42"));
        let original = "/orders/42".parse().expect("a valid path");
        let original = axum::extract::OriginalUri(original);
        request.extensions.insert(original);
        let key = LockKey::from_parts(["/orders/42"]);
        assert_eq!(ByPath.extract(&request), Ok(Some(key.into())));
    }
}
