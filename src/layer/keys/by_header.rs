//! A header as the key.

use http::HeaderName;
use http::header::HOST;
use http::request::Parts;

use super::extractor::{Extracted, KeyExtractor};
use super::host;
use super::source::ValueSource;

/// The key of [`LockLayer::by_header`](crate::LockLayer::by_header) and of
/// [`LockLayer::by_host`](crate::LockLayer::by_host).
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
    fn extract(&self, request: &Parts) -> Extracted {
        self.keys(request, None)
    }

    fn extract_in_place(&self, request: &mut Parts, kind: Option<&str>) -> Extracted {
        self.keys(request, kind)
    }
}

impl ByHeader {
    fn keys(&self, request: &Parts, kind: Option<&str>) -> Extracted {
        let source = ValueSource {
            place: "header",
            name: self.name.as_str(),
        };
        if self.name == HOST {
            return source.key(kind, host::of(request)?.as_bytes());
        }
        let value = source.only(request.headers.get_all(&self.name).iter())?;
        source.key(kind, value.as_bytes())
    }
}
