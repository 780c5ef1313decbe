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
    fn header_is_required_exactly_once() {
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
        assert_eq!(
            extract(Request::get("/").header("x-id", "")),
            Err(InvalidKey::EmptyValue { what: what() })
        );
        let bytes = extract(Request::get("/").header("x-id", &b"\xff"[..]));
        assert_eq!(
            bytes,
            Ok(Some(LockKey::from_parts([b"x-id", &b"\xff"[..]]).into()))
        );
    }
}
