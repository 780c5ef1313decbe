//! A parameter of the axum route as the key.

use std::borrow::Cow;

use http::request::Parts;

use super::params;
use crate::layer::KeyExtractor;
use crate::{InvalidKey, LockKeys};

/// The key of [`LockLayer::by_path_param`](crate::LockLayer::by_path_param).
#[derive(Debug, Clone)]
pub struct ByPathParam {
    name: Cow<'static, str>,
    pub(in crate::layer::keys) kind: Option<Cow<'static, str>>,
}

impl ByPathParam {
    pub(in crate::layer) fn new(name: Cow<'static, str>) -> Self {
        params::assert_valid("by_path_param", &name);
        Self { name, kind: None }
    }
}

impl KeyExtractor for ByPathParam {
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        params::on_copy(request, |copy| self.extract_in_place(copy))
    }

    fn extract_in_place(&self, request: &mut Parts) -> Result<Option<LockKeys>, InvalidKey> {
        let params = params::read(request)?;
        let value = params::value(&params, &self.name, request)?;
        params::source(&self.name).key(self.kind.as_deref(), value.as_bytes())
    }

    fn parameters(&self) -> Vec<&str> {
        params::unless(&self.kind, [&*self.name])
    }
}
