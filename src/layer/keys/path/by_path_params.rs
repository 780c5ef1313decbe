//! Several parameters of the axum route as one key.

use std::borrow::Cow;

use http::request::Parts;

use super::params;
use crate::LockKey;
use crate::layer::keys::extractor::{Extracted, KeyExtractor};

/// The key of [`LockLayer::by_path_params`](crate::LockLayer::by_path_params).
#[derive(Debug, Clone)]
pub struct ByPathParams {
    names: Box<[Cow<'static, str>]>,
}

impl ByPathParams {
    pub(in crate::layer) fn new(names: Box<[Cow<'static, str>]>) -> Self {
        for (index, name) in names.iter().enumerate() {
            params::assert_valid("by_path_params", name);
            assert!(
                !names[..index].contains(name),
                "`LockLayer`: invalid `by_path_params`: `{name}` is listed twice"
            );
        }
        assert!(
            !names.is_empty(),
            "`LockLayer`: invalid `by_path_params`: list at least one parameter"
        );
        Self { names }
    }
}

impl KeyExtractor for ByPathParams {
    fn extract(&self, request: &Parts) -> Extracted {
        params::on_copy(request, |copy| self.extract_in_place(copy, None))
    }

    fn extract_in_place(&self, request: &mut Parts, kind: Option<&str>) -> Extracted {
        let params = params::read(request)?;
        let mut parts = Vec::with_capacity(2 * self.names.len());
        parts.extend(kind);
        for name in &self.names {
            if kind.is_none() {
                parts.push(&**name);
            }
            parts.push(params::value(&params, name, request)?);
        }
        Ok(Some(LockKey::from_parts(parts).into()))
    }

    fn parameters(&self) -> Vec<&str> {
        self.names.iter().map(|name| &**name).collect()
    }
}
