//! A query parameter as the key.

use std::borrow::Cow;

use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::extractor::{Extracted, KeyExtractor};
use super::source::ValueSource;
use crate::InvalidKey;

/// The key of [`LockLayer::by_query`](crate::LockLayer::by_query).
#[derive(Debug, Clone)]
pub struct ByQuery {
    name: Cow<'static, str>,
}

impl ByQuery {
    pub(in crate::layer) fn new(name: Cow<'static, str>) -> Self {
        Self { name }
    }
}

impl KeyExtractor for ByQuery {
    fn extract(&self, request: &Parts) -> Extracted {
        self.keys(request, None)
    }

    fn extract_in_place(&self, request: &mut Parts, kind: Option<&str>) -> Extracted {
        self.keys(request, kind)
    }
}

impl ByQuery {
    fn keys(&self, request: &Parts, kind: Option<&str>) -> Extracted {
        let source = ValueSource {
            place: "query parameter",
            name: &self.name,
        };
        let query = request.uri.query().unwrap_or_default();
        let pairs = query.split('&');
        let values = pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .filter(|(name, _)| *form_decode(name) == *self.name.as_bytes())
            .map(|(_, value)| value);
        let value = form_decode(source.only(values)?);
        match std::str::from_utf8(&value) {
            Ok(_) => source.key(kind, &value),
            Err(_) => Err(InvalidKey::undecodable(source.to_string())),
        }
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
