//! A value of the request as the key.

mod header;
mod host;
#[cfg(feature = "axum")]
mod params;
#[cfg(feature = "axum")]
mod path_param;
mod query;
mod source;

use std::borrow::Cow;

use http::HeaderName;
use http::request::Parts;

use super::extractor::{Extracted, KeyExtractor};
#[cfg(feature = "axum")]
pub(in crate::layer) use path_param::PathParam;

/// The keys of the constructors that lock by a path parameter, a header, the host or the query.
#[derive(Debug, Clone)]
pub struct ByValue {
    place: Place,
    kind: Option<Cow<'static, str>>,
}

/// Where the value stands.
#[derive(Debug, Clone)]
pub(in crate::layer) enum Place {
    Header(HeaderName),
    Query(Cow<'static, str>),
    #[cfg(feature = "axum")]
    PathParam(PathParam),
    #[cfg(feature = "axum")]
    PathParams(Box<[PathParam]>),
}

impl ByValue {
    pub(in crate::layer) fn of(place: Place) -> Self {
        Self { place, kind: None }
    }

    pub(in crate::layer) fn with_kind(self, kind: Cow<'static, str>) -> Self {
        let kind = Some(kind);
        Self { kind, ..self }
    }
}

impl KeyExtractor for ByValue {
    fn extract(&self, request: &Parts) -> Extracted {
        self.extract_in_place(&mut request.clone())
    }

    fn extract_in_place(&self, request: &mut Parts) -> Extracted {
        let kind = self.kind.as_deref();
        match &self.place {
            Place::Header(name) => header::key(name, kind, request),
            Place::Query(name) => query::key(name, kind, request),
            #[cfg(feature = "axum")]
            Place::PathParam(param) => param.key(kind, request),
            #[cfg(feature = "axum")]
            Place::PathParams(params) => PathParam::key_of_all(params, kind, request),
        }
    }

    fn parameters(&self) -> Vec<&str> {
        match &self.place {
            _ if self.kind.is_some() => Vec::new(),
            #[cfg(feature = "axum")]
            Place::PathParam(param) => vec![param.name()],
            #[cfg(feature = "axum")]
            Place::PathParams(params) => params.iter().map(PathParam::name).collect(),
            Place::Header(_) | Place::Query(_) => Vec::new(),
        }
    }
}
