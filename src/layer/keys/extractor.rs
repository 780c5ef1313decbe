//! What reads the keys from a request.

use http::request::Parts;

use crate::{InvalidKey, LockKeys};

/// Says which keys a request must hold while it is served.
///
/// Implemented by the extractors behind [`LockLayer`](crate::LockLayer)'s constructors, and by
/// every closure of the same shape. Parts of a key that come from a request belong into
/// [`LockKey::from_parts`](crate::LockKey::from_parts), which keeps them apart.
///
/// ```
/// use http::request::Parts;
/// use tower_lock::{InvalidKey, LockKey, LockKeys, LockLayer, LockManager};
///
/// /// One lock per tenant and path; requests without a tenant are not locked.
/// fn tenant_and_path(request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
///     let Some(tenant) = request.headers.get("x-tenant") else {
///         return Ok(None);
///     };
///     let parts = ["tenant".as_bytes(), tenant.as_bytes(), request.uri.path().as_bytes()];
///     Ok(Some(LockKey::from_parts(parts).into()))
/// }
///
/// let layer = LockLayer::new(LockManager::in_memory(), tenant_and_path);
/// # drop(layer);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which locks a request needs",
    label = "not a `KeyExtractor`",
    note = "use `LockLayer::by_path` or one of its siblings, or pass a closure with its argument's \
            type written out: `|request: &http::request::Parts| -> Result<Option<LockKeys>, \
            InvalidKey>`"
)]
pub trait KeyExtractor {
    /// The keys of this request; `None` lets it pass without a lock.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] if the request lacks what the key is made of, or has it in a form that
    /// cannot be read. The request is answered with 400 and never reaches the inner service.
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey>;

    /// What the service calls. Only for [`ByPathParam`]: axum's extractors want `&mut`, and a
    /// copy of all extensions to satisfy them costs more than the lock.
    #[doc(hidden)]
    fn extract_in_place(&self, request: &mut Parts) -> Result<Option<LockKeys>, InvalidKey> {
        self.extract(request)
    }
}

impl<F> KeyExtractor for F
where
    F: Fn(&Parts) -> Result<Option<LockKeys>, InvalidKey>,
{
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        self(request)
    }
}
