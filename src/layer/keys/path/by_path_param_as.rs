//! A parsed parameter of the axum route as the key.

use std::any::type_name;
use std::borrow::Cow;
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use http::request::Parts;

use super::params;
use crate::InvalidKey;
use crate::layer::keys::extractor::{Extracted, KeyExtractor};

/// The key of [`LockLayer::by_path_param_as`](crate::LockLayer::by_path_param_as).
pub struct ByPathParamAs<T> {
    name: Cow<'static, str>,
    value: PhantomData<fn() -> T>,
}

impl<T> ByPathParamAs<T> {
    pub(in crate::layer) fn new(name: Cow<'static, str>) -> Self {
        params::assert_valid("by_path_param_as", &name);
        Self {
            name,
            value: PhantomData,
        }
    }
}

impl<T: FromStr + Display> KeyExtractor for ByPathParamAs<T> {
    fn extract(&self, request: &Parts) -> Extracted {
        params::on_copy(request, |copy| self.extract_in_place(copy, None))
    }

    fn extract_in_place(&self, request: &mut Parts, kind: Option<&str>) -> Extracted {
        let params = params::read(request)?;
        let value = params::value(&params, &self.name, request)?;
        let source = params::source(&self.name);
        let value: T = value.parse().map_err(|_| InvalidKey::Malformed {
            what: source.to_string().into(),
        })?;
        source.key(kind, value.to_string().as_bytes())
    }

    fn parameters(&self) -> Vec<&str> {
        vec![&*self.name]
    }
}

impl<T> fmt::Debug for ByPathParamAs<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByPathParamAs<{}>({:?})", type_name::<T>(), self.name)
    }
}
