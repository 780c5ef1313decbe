//! From the head of a request to the keys that it must hold.
//!
//! A new source is a `Place` of [`ByValue`] if the key is `[kind, value]`, or else a [`KeyExtractor`] in a file of its own. Each
//! has a constructor of `LockLayer`.

mod by_extension;
mod by_fn;
mod by_path;
mod by_value;
mod extractor;
mod keyed;
#[cfg(feature = "axum")]
mod lock_by;
#[cfg(feature = "axum")]
mod shared_kind;
mod target;
#[cfg(test)]
mod tests;

pub(super) use by_extension::of_extension;
pub use by_fn::{ByFn, IntoLockKeys};
pub use by_path::ByPath;
pub use by_value::ByValue;
#[cfg(feature = "axum")]
pub(super) use by_value::PathParam;
pub(super) use by_value::Place;
pub use extractor::KeyExtractor;
pub(super) use keyed::Keyed;
#[cfg(feature = "axum")]
pub use lock_by::{FromTarget, Guarded, LockBy, Shared};
pub use target::LockTarget;
