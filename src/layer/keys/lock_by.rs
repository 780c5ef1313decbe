//! The keys of values whose types belong to other crates.

use std::marker::PhantomData;

use super::target::LockTarget;
use crate::{LockGuard, LockKeys};

/// Supplies the keys of a value of a type that belongs to another crate.
///
/// A [`LockTarget`] supplies its own keys. A type of another crate, such as a tuple in a `Path`, cannot implement
/// it. A marker type of the program implements `LockBy` instead, and [`Locked`](crate::Locked) takes it as its
/// second parameter.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Router, body::Body, extract::Path, http::{Request, StatusCode}, routing::post};
/// use tower::ServiceExt;
/// use tower_lock::{LockBy, LockKey, LockKeys, LockManager, LockScopeLayer, Locked};
///
/// struct ByOrder;
///
/// impl LockBy<Path<(String, u64)>> for ByOrder {
///     fn lock_keys(Path((shop, order)): &Path<(String, u64)>) -> LockKeys {
///         LockKey::from_parts(("order", shop, order)).into()
///     }
/// }
///
/// type OrderPath = Path<(String, u64)>;
///
/// async fn ship(Locked(Path((shop, order)), guard): Locked<OrderPath, ByOrder>) -> String {
///     format!("ships {order} of {shop} with token {}", guard.fencing_token())
/// }
///
/// let locks = LockManager::in_memory();
/// let app: Router = Router::new()
///     .route("/shops/{shop}/orders/{order}/ship", post(ship))
///     .layer(LockScopeLayer::new())
///     .with_state(locks.clone());
/// let request = Request::post("/shops/berlin/orders/7/ship").body(Body::empty())?;
/// assert_eq!(app.oneshot(request).await?.status(), StatusCode::OK);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` supplies no lock keys for `{T}`",
    label = "no lock keys for `{T}`",
    note = "for your own type, write `impl LockTarget for ...`; for a type of another crate, write \
            `impl LockBy<...> for ByOrder` and extract `Locked<..., ByOrder>`"
)]
pub trait LockBy<T> {
    /// Returns the keys to hold for this value.
    ///
    /// Several keys are acquired all or none, in an order that cannot deadlock.
    fn lock_keys(value: &T) -> LockKeys;
}

/// The keys that a [`LockTarget`] returns: the default of [`Locked`](crate::Locked).
#[derive(Debug, Clone, Copy)]
pub struct FromTarget;

impl<T: LockTarget> LockBy<T> for FromTarget {
    fn lock_keys(value: &T) -> LockKeys {
        value.lock_keys()
    }
}

/// The keys of `By`, all locked [shared](crate::manager::Acquire::shared): see [`LockedShared`](crate::LockedShared).
#[derive(Debug, Clone, Copy)]
pub struct Shared<By = FromTarget>(PhantomData<By>);

impl<T, By: LockBy<T>> LockBy<T> for Shared<By> {
    fn lock_keys(value: &T) -> LockKeys {
        let mut keys = By::lock_keys(value);
        keys.share();
        keys
    }
}

/// Names the guard of a [`Locked`](crate::Locked): for each type, it is [`LockGuard`].
///
/// A field of `Locked` must name the parameter `By`. This trait lets the field of the guard do so.
pub trait Guarded {
    /// The guard.
    type Guard;
}

impl<By> Guarded for By {
    type Guard = LockGuard;
}
