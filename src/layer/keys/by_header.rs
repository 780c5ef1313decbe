//! A header as the key.

use std::borrow::Cow;

use http::HeaderName;
use http::header::HOST;
use http::request::Parts;

use super::extractor::KeyExtractor;
use super::host;
use super::source::ValueSource;
use crate::{InvalidKey, LockKeys};

/// The key of [`LockLayer::by_header`](crate::LockLayer::by_header) and of
/// [`LockLayer::by_host`](crate::LockLayer::by_host).
#[derive(Debug, Clone)]
pub struct ByHeader {
    name: HeaderName,
    pub(super) kind: Option<Cow<'static, str>>,
}

impl ByHeader {
    pub(in crate::layer) fn new(name: HeaderName) -> Self {
        Self { name, kind: None }
    }
}

impl KeyExtractor for ByHeader {
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        let source = ValueSource {
            place: "header",
            name: self.name.as_str(),
        };
        let kind = self.kind.as_deref();
        if self.name == HOST {
            return source.key(kind, host::of(request)?.as_bytes());
        }
        let value = source.only(request.headers.get_all(&self.name).iter())?;
        source.key(kind, value.as_bytes())
    }
}
