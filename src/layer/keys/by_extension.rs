//! An extension of the request as the key.

use std::any::type_name;

use http::request::Parts;

use super::target::LockTarget;
use crate::{InvalidKey, LockKeys};

/// Returns what the extension of this type names.
pub(in crate::layer) fn of_extension<T>(request: &Parts) -> Result<LockKeys, InvalidKey>
where
    T: LockTarget + Send + Sync + 'static,
{
    let missing = || {
        let problem = format!(
            "the request has no extension of type `{}`; insert it in a layer outside of the lock layer",
            type_name::<T>()
        );
        InvalidKey::Setup(problem.into())
    };
    let target = request.extensions.get::<T>().ok_or_else(missing)?;
    Ok(target.lock_keys())
}
