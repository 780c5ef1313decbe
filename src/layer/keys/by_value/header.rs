//! A header as the key.

use http::HeaderName;
use http::header::HOST;
use http::request::Parts;

use super::host;
use super::source::ValueSource;
use crate::layer::keys::extractor::Extracted;

/// Returns the key of the kind and the only value of the header.
pub(super) fn key(name: &HeaderName, kind: Option<&str>, request: &Parts) -> Extracted {
    let source = ValueSource {
        place: "header",
        name: name.as_str(),
    };
    if name == HOST {
        return source.key(kind, host::of(request)?.as_bytes());
    }
    let value = source.only(request.headers.get_all(name).iter())?;
    source.key(kind, value.as_bytes())
}
