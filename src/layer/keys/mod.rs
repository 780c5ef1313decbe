//! From the head of a request to the keys that it must hold.
//!
//! A new place that keys come from is a [`KeyExtractor`] in a file of its own, and a constructor of `LockLayer`.

mod by_extension;
mod by_fn;
mod by_header;
mod by_query;
mod extractor;
mod host;
mod keyed;
mod kind;
#[cfg(feature = "axum")]
mod lock_by;
mod path;
#[cfg(feature = "axum")]
mod shared_kind;
mod source;
mod target;
#[cfg(test)]
mod tests;

pub use by_extension::ByExtension;
pub use by_fn::{ByFn, IntoLockKeys};
pub use by_header::ByHeader;
pub use by_query::ByQuery;
pub use extractor::KeyExtractor;
pub(super) use keyed::Keyed;
pub use kind::WithKind;
#[cfg(feature = "axum")]
pub use lock_by::{FromTarget, Guarded, LockBy, Shared};
pub use path::ByPath;
#[cfg(feature = "axum")]
pub use path::{ByPathParam, ByPathParamAs, ByPathParams};
pub use target::LockTarget;
