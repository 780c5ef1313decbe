//! Several parameters of the axum route as one key.

use std::borrow::Cow;

use http::request::Parts;

use super::params;
use crate::layer::KeyExtractor;
use crate::{InvalidKey, LockKey, LockKeys};

/// The key of [`LockLayer::by_path_params`](crate::LockLayer::by_path_params).
#[derive(Debug, Clone)]
pub struct ByPathParams {
    names: Box<[Cow<'static, str>]>,
    pub(in crate::layer::keys) kind: Option<Cow<'static, str>>,
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
        Self { names, kind: None }
    }
}

impl KeyExtractor for ByPathParams {
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        params::on_copy(request, |copy| self.extract_in_place(copy))
    }

    fn extract_in_place(&self, request: &mut Parts) -> Result<Option<LockKeys>, InvalidKey> {
        let params = params::read(request)?;
        let mut parts = Vec::with_capacity(2 * self.names.len());
        parts.extend(self.kind.as_deref());
        for name in &self.names {
            if self.kind.is_none() {
                parts.push(&**name);
            }
            parts.push(params::value(&params, name, request)?);
        }
        Ok(Some(LockKey::from_parts(parts).into()))
    }

    fn parameters(&self) -> Vec<&str> {
        params::unless(&self.kind, self.names.iter().map(|name| &**name))
    }
}
