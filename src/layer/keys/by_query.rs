//! A query parameter as the key.

use std::borrow::Cow;

use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::extractor::KeyExtractor;
use crate::{InvalidKey, LockKey, LockKeys};

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
        let value = values.next().ok_or_else(|| InvalidKey::missing(what()))?;
        if values.next().is_some() {
            return Err(InvalidKey::ambiguous(what()));
        }
        let value = form_decode(value);
        std::str::from_utf8(&value).map_err(|_| InvalidKey::undecodable(what()))?;
        if value.is_empty() {
            return Err(InvalidKey::empty_value(what()));
        }
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
