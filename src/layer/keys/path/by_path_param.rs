//! A parameter of the axum route as the key.

use std::borrow::Cow;

use http::request::Parts;

use super::params;
use crate::layer::keys::extractor::{Extracted, KeyExtractor};

/// The key of [`LockLayer::by_path_param`](crate::LockLayer::by_path_param).
#[derive(Debug, Clone)]
pub struct ByPathParam {
    name: Cow<'static, str>,
}

impl ByPathParam {
    pub(in crate::layer) fn new(name: Cow<'static, str>) -> Self {
        params::assert_valid("by_path_param", &name);
        Self { name }
    }
}

impl KeyExtractor for ByPathParam {
    fn extract(&self, request: &Parts) -> Extracted {
        params::on_copy(request, |copy| self.extract_in_place(copy, None))
    }

    fn extract_in_place(&self, request: &mut Parts, kind: Option<&str>) -> Extracted {
        let params = params::read(request)?;
        let value = params::value(&params, &self.name, request)?;
        params::source(&self.name).key(kind, value.as_bytes())
    }

    fn parameters(&self) -> Vec<&str> {
        vec![&*self.name]
    }
}
