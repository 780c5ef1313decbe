//! What reads the keys from a request.

use http::request::Parts;

use crate::{InvalidKey, LockKeys};

pub(super) type Extracted = Result<Option<LockKeys>, InvalidKey>;

/// Returns the keys that a request must hold while it is served.
///
/// The extractors behind the constructors of [`LockLayer`](crate::LockLayer) implement it. Implement it for a type
/// of your own. [`LockLayer::by_fn`](crate::LockLayer::by_fn) takes a closure. Parts
/// of a key that come from a request belong into [`LockKey::from_parts`](crate::LockKey::from_parts), which separates them.
///
/// ```
/// use http::request::Parts;
/// use tower_lock::keys::{InvalidKey, KeyExtractor};
/// use tower_lock::{LockKey, LockKeys, LockLayer, LockManager};
///
/// /// One lock per tenant and path; requests without a tenant are not locked.
/// struct TenantAndPath;
///
/// impl KeyExtractor for TenantAndPath {
///     fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
///         let Some(tenant) = request.headers.get("x-tenant") else {
///             return Ok(None);
///         };
///         // It unifies the spellings of a path.
///         let path = LockKey::from_path(request.uri.path());
///         path.validate()?;
///         let parts = ["tenant".as_bytes(), tenant.as_bytes(), path.as_str().as_bytes()];
///         Ok(Some(LockKey::from_parts(parts).into()))
///     }
/// }
///
/// let layer = LockLayer::new(LockManager::in_memory(), TenantAndPath);
/// # drop(layer);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` returns no lock keys for a request",
    label = "not a `KeyExtractor`",
    note = "pass a closure to `LockLayer::by_fn`, or use `LockLayer::by_path` or one of its siblings"
)]
pub trait KeyExtractor {
    /// Returns the keys of this request, or `None` to pass it without a lock.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidKey`] if the request has no usable key. The layer rejects it with 400, with 404 for
    /// [`InvalidKey::NoRoute`], and with 500 for [`InvalidKey::Setup`]. The inner service does not run.
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey>;

    /// The method that the service calls. Path parameters override it: axum's extractors need `&mut`, and a copy of all
    /// extensions costs more than the lock.
    #[doc(hidden)]
    fn extract_in_place(&self, request: &mut Parts) -> Extracted {
        self.extract(request)
    }

    /// Returns the names of path parameters that are the kind of the keys, or none.
    #[doc(hidden)]
    fn parameters(&self) -> Vec<&str> {
        Vec::new()
    }
}
