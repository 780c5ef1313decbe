//! The path of the request as the key.

use http::request::Parts;

use super::extractor::KeyExtractor;
use super::path::normalise;
use crate::{InvalidKey, LockKey, LockKeys};

/// The key of [`LockLayer::by_path`](crate::LockLayer::by_path).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ByPath;

impl KeyExtractor for ByPath {
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        let path =
            normalise(original_path(request)).map_err(|_| InvalidKey::undecodable("path"))?;
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
