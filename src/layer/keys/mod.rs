//! From the head of a request to the keys that it must hold.
//!
//! A new place that keys come from is a [`KeyExtractor`] in a file of its own, and a constructor of `LockLayer`.

mod by_extension;
mod by_header;
mod by_path;
#[cfg(feature = "axum")]
mod by_path_param;
mod by_query;
mod extractor;
#[cfg(feature = "axum")]
mod lock_by;
mod path;
mod target;
#[cfg(test)]
mod tests;

pub use by_extension::ByExtension;
pub use by_header::ByHeader;
pub use by_path::ByPath;
#[cfg(feature = "axum")]
pub use by_path_param::ByPathParam;
pub use by_query::ByQuery;
pub use extractor::KeyExtractor;
#[cfg(feature = "axum")]
pub use lock_by::{FromTarget, Guarded, LockBy};
pub use target::LockTarget;
