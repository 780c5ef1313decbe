//! A header as the key.

use http::HeaderName;
use http::request::Parts;

use super::extractor::KeyExtractor;
use crate::{InvalidKey, LockKey, LockKeys};

/// The key of [`LockLayer::by_header`](crate::LockLayer::by_header).
#[derive(Debug, Clone)]
pub struct ByHeader {
    name: HeaderName,
}

impl ByHeader {
    pub(in crate::layer) fn new(name: HeaderName) -> Self {
        Self { name }
    }
}

impl KeyExtractor for ByHeader {
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        let what = || format!("header `{}`", self.name);
        let mut values = request.headers.get_all(&self.name).iter();
        let value = values.next().ok_or_else(|| InvalidKey::missing(what()))?;
        if values.next().is_some() {
            return Err(InvalidKey::ambiguous(what()));
        }
        if value.is_empty() {
            return Err(InvalidKey::empty_value(what()));
        }
        let parts = [self.name.as_str().as_bytes(), value.as_bytes()];
        Ok(Some(LockKey::from_parts(parts).into()))
    }
}
