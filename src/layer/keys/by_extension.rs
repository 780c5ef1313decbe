//! An extension of the request as the key.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use http::request::Parts;

use super::extractor::KeyExtractor;
use super::target::LockTarget;
use crate::{InvalidKey, LockKeys};

/// The key of [`LockLayer::by_extension`](crate::LockLayer::by_extension).
pub struct ByExtension<T> {
    target: PhantomData<fn() -> T>,
}

impl<T> ByExtension<T> {
    pub(in crate::layer) fn new() -> Self {
        Self {
            target: PhantomData,
        }
    }
}

impl<T> fmt::Debug for ByExtension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByExtension<{}>", type_name::<T>())
    }
}

impl<T> KeyExtractor for ByExtension<T>
where
    T: LockTarget + Send + Sync + 'static,
{
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        match request.extensions.get::<T>() {
            Some(target) => Ok(Some(target.lock_keys())),
            None => Err(InvalidKey::Setup {
                problem: format!(
                    "the request has no extension of type `{}`; insert it in a layer outside of the lock layer",
                    type_name::<T>()
                )
                .into(),
            }),
        }
    }
}
