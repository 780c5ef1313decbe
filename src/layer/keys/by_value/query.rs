//! A query parameter as the key.

use std::borrow::Cow;

use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::source::ValueSource;
use crate::InvalidKey;
use crate::layer::keys::extractor::Extracted;

/// Returns the key of the kind and the only value of the parameter.
pub(super) fn key(name: &str, kind: Option<&str>, request: &Parts) -> Extracted {
    let source = ValueSource {
        place: "query parameter",
        name,
    };
    let query = request.uri.query().unwrap_or_default();
    let pairs = query.split('&');
    let values = pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(|(other, _)| *form_decode(other) == *name.as_bytes())
        .map(|(_, value)| value);
    let value = form_decode(source.only(values)?);
    match std::str::from_utf8(&value) {
        Ok(_) => source.key(kind, &value),
        Err(_) => Err(InvalidKey::Undecodable(source.to_string().into())),
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
