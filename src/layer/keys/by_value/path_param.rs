//! Parameters of the axum route as the key.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

use http::request::Parts;

use super::params;
use super::source::ValueSource;
use crate::layer::keys::extractor::Extracted;
use crate::{InvalidKey, LockKey};

/// A parameter of a route.
#[derive(Debug, Clone)]
pub(in crate::layer) struct PathParam {
    name: Cow<'static, str>,
    /// Returns the only spelling of a value, if the parameter is parsed.
    unify: Option<fn(&str) -> Option<String>>,
}

impl PathParam {
    /// Panics if the parameter of a usual route cannot have this name.
    pub(in crate::layer) fn new(constructor: &str, name: Cow<'static, str>) -> Self {
        assert!(
            !name.is_empty() && !name.starts_with(':') && !name.contains(['{', '}', '*', '/']),
            "`LockLayer`: invalid `{constructor}`: name the parameter as in `Path`, without `:`, braces and `*`, and \
             write `{{id}}` in the route"
        );
        Self { name, unify: None }
    }

    pub(in crate::layer) fn parsed<T: FromStr + Display>(self) -> Self {
        let unify: fn(&str) -> Option<String> =
            |value| value.parse().ok().map(|value: T| value.to_string());
        Self {
            unify: Some(unify),
            ..self
        }
    }

    pub(in crate::layer) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the key of the kind and the value.
    pub(super) fn key(&self, kind: Option<&str>, request: &mut Parts) -> Extracted {
        let params = params::read(request)?;
        let value = params::value(&params, &self.name, request)?;
        // The words of an error, which a client reads.
        let source = ValueSource {
            place: "path parameter",
            name: &self.name,
        };
        let Some(unify) = self.unify else {
            return source.key(kind, value.as_bytes());
        };
        let value = unify(value).ok_or_else(|| InvalidKey::Malformed(source.to_string().into()))?;
        source.key(kind, value.as_bytes())
    }

    /// Returns one key of several parameters: a name before each value, or the kind before all values.
    pub(super) fn key_of_all(all: &[Self], kind: Option<&str>, request: &mut Parts) -> Extracted {
        let params = params::read(request)?;
        let mut parts = Vec::with_capacity(2 * all.len());
        parts.extend(kind);
        for Self { name, .. } in all {
            if kind.is_none() {
                parts.push(&**name);
            }
            parts.push(params::value(&params, name, request)?);
        }
        Ok(Some(LockKey::from_parts(parts).into()))
    }
}
