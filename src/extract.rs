//! The axum extractor that locks, and those that show what is locked.

mod locking;
mod missing;
mod shown;

use std::fmt;
use std::ops::{Deref, DerefMut};

use axum::extract::{
    Extension, Form, FromRef, FromRequest, FromRequestParts, Json, Path, Query, Request,
};
use axum::response::{IntoResponse, Response};
use http::request::Parts;

use self::locking::Locking;
pub use self::missing::MissingLayer;
use crate::layer::{FromTarget, Guarded, LockBy, LockRejection, LockTarget, RequestInfo, Shared};
use crate::{Error, LockKeys, LockManager};

/// An extractor that locks the keys of the value that the extractor inside returns.
///
/// Its fields are the value and its [`LockGuard`](crate::LockGuard).
///
/// `T` is any extractor whose value is a [`LockTarget`]: `Json`, `Form`, `Query`, `Path` and
/// `Extension` of one, or a type of your own. For a value of a type that belongs to another crate, `By` supplies
/// the keys: see [`LockBy`]. The locks come from the router's state
/// (`LockManager: FromRef<S>`). A request re-enters the locks that it holds through a
/// [`LockLayer`](crate::LockLayer) or another `Locked`.
///
/// The lock is acquired after the extractor inside has its value, so a rejected body waits for no lock: see
/// [validation](crate::guide::keys#validate-a-body-before-the-lock).
///
/// A handler that needs several locks acquires them in *one* `Locked` with several keys. Extractors run one after the
/// other, so with two of them, requests with the same keys in another order wait for each other.
///
/// Put a [`LockScopeLayer`](crate::LockScopeLayer) around the route. It keeps the lock until the response is
/// complete, aborts the handler if the lock is lost, and has the settings of `Locked`. A
/// [`LockLayer`](crate::LockLayer) does the same. A request outside of both is rejected with 500 `lock-misconfigured`
/// before it acquires a lock: a closure drops its guard before its work, and a streaming body has none.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Json, Router, body::Body, http::{Request, StatusCode}, routing::post};
/// use serde::Deserialize;
/// use tower::ServiceExt;
/// use tower_lock::{LockKey, LockKeys, LockManager, LockScopeLayer, LockTarget, Locked};
///
/// #[derive(Deserialize)]
/// struct Transfer {
///     from: String,
///     to: String,
/// }
///
/// impl LockTarget for Transfer {
///     fn lock_keys(&self) -> LockKeys {
///         LockKeys::from([
///             LockKey::from_parts(["account", &self.from]),
///             LockKey::from_parts(["account", &self.to]),
///         ])
///     }
/// }
///
/// async fn transfer(Locked(Json(transfer), guard): Locked<Json<Transfer>>) -> String {
///     // Both accounts are locked until the response is complete; the storage checks the token.
///     format!("{} -> {} under {}", transfer.from, transfer.to, guard.fencing_token())
/// }
///
/// let app: Router = Router::new()
///     .route("/transfers", post(transfer))
///     .layer(LockScopeLayer::new())
///     .with_state(LockManager::in_memory());
/// let request = Request::post("/transfers")
///     .header("content-type", "application/json")
///     .body(Body::from(r#"{"from":"7","to":"8"}"#))?;
/// assert_eq!(app.oneshot(request).await?.status(), StatusCode::OK);
/// # Ok(())
/// # }
/// ```
///
/// # If a handler does not compile
///
/// If the type inside does not implement [`LockTarget`], the compiler says so at the argument of the handler:
/// "`Ship` supplies no keys to lock". `String` and `Path<String>` do not: wrap the value in a type of your own, or
/// supply the keys with [`LockBy`].
///
/// ```compile_fail,E0277
/// # use axum::Json;
/// # use serde::Deserialize;
/// # use tower_lock::Locked;
/// # #[derive(Deserialize)] struct Ship { order: String }
/// async fn ship(Locked(Json(ship), guard): Locked<Json<Ship>>) {}
/// ```
///
/// For other reasons, the compiler says only that `Handler` is not implemented, at the route:
///
/// - An extractor that reads the body is not the last argument.
/// - The state does not supply a [`LockManager`]. Write `.with_state(locks)`, or implement `FromRef` for the
///   state.
///
/// `#[axum::debug_handler]` assumes the state `()`, and rejects each `Locked` under it. Name the state:
/// `#[debug_handler(state = LockManager)]`.
///
/// This handler compiles:
///
/// ```
/// # use axum::{Json, Router, extract::Path, routing::post};
/// # use serde::Deserialize;
/// # use tower_lock::{LockKey, LockKeys, LockManager, LockScopeLayer, LockTarget, Locked};
/// # #[derive(Deserialize)] struct Ship { order: String }
/// impl LockTarget for Ship {
///     fn lock_keys(&self) -> LockKeys {
///         LockKey::from_parts(["order", &self.order]).into()
///     }
/// }
/// async fn ship(Path(shop): Path<String>, Locked(Json(ship), guard): Locked<Json<Ship>>) {}
/// # let app: Router<LockManager> = Router::new()
/// #     .route("/{shop}/ship", post(ship))
/// #     .layer(LockScopeLayer::new());
/// ```
///
/// With its extractors in another order, it does not compile, because the body is not last:
///
/// ```compile_fail,E0277
/// # use axum::{Json, Router, extract::Path, routing::post};
/// # use serde::Deserialize;
/// # use tower_lock::{LockKey, LockKeys, LockManager, LockScopeLayer, LockTarget, Locked};
/// # #[derive(Deserialize)] struct Ship { order: String }
/// # impl LockTarget for Ship {
/// #     fn lock_keys(&self) -> LockKeys {
/// #         LockKey::from_parts(["order", &self.order]).into()
/// #     }
/// # }
/// async fn ship(Locked(Json(ship), guard): Locked<Json<Ship>>, Path(shop): Path<String>) {}
/// # let app: Router<LockManager> = Router::new()
/// #     .route("/{shop}/ship", post(ship))
/// #     .layer(LockScopeLayer::new());
/// ```
///
/// # A state with other values
///
/// `FromRef` supplies the manager from a state of the program. It cannot be implemented for `Arc<App>`, because
/// both `Arc` and `LockManager` belong to other crates. A wrapper around the `Arc` can implement it:
///
/// ```
/// use std::sync::Arc;
///
/// use axum::{Router, extract::FromRef, routing::post};
/// use tower_lock::{LockBy, LockKey, LockKeys, LockManager, LockScopeLayer, LockTarget, Locked};
///
/// struct App {
///     locks: LockManager,
/// }
///
/// #[derive(Clone)]
/// struct AppState(Arc<App>);
///
/// impl FromRef<AppState> for LockManager {
///     fn from_ref(state: &AppState) -> Self {
///         state.0.locks.clone()
///     }
/// }
///
/// # struct Transfer;
/// # impl LockTarget for Transfer {
/// #     fn lock_keys(&self) -> LockKeys { LockKey::new("transfer").into() }
/// # }
/// # impl<S: Sync> axum::extract::FromRequestParts<S> for Transfer {
/// #     type Rejection = std::convert::Infallible;
/// #     async fn from_request_parts(
/// #         _: &mut axum::http::request::Parts,
/// #         _: &S,
/// #     ) -> Result<Self, Self::Rejection> {
/// #         Ok(Transfer)
/// #     }
/// # }
/// async fn transfer(Locked(transfer, _guard): Locked<Transfer>) {}
///
/// let app: Router = Router::new()
///     .route("/transfers", post(transfer))
///     .layer(LockScopeLayer::new())
///     .with_state(AppState(Arc::new(App { locks: LockManager::in_memory() })));
/// # drop(app);
/// ```
///
/// # Cancel safety
///
/// If the client disconnects while the request waits, the request leaves the queue, and nothing remains.
#[must_use = "the lock is released as soon as the guard inside is dropped"]
pub struct Locked<T, By = FromTarget>(pub T, pub <By as Guarded>::Guard)
where
    // Makes the compiler name a type without keys.
    By: LockBy<T>;

/// A [`Locked`] whose keys are all locked [shared](crate::manager::Acquire::shared), for handlers that only read. The pattern is that
/// of `Locked`.
///
/// ```
/// # use axum::{Router, extract::Path, routing::get};
/// # use serde::Deserialize;
/// # use tower_lock::{LockKey, LockKeys, LockManager, LockScopeLayer, LockTarget, Locked, LockedShared};
/// # #[derive(Deserialize)] struct Account { id: String }
/// impl LockTarget for Account {
///     fn lock_keys(&self) -> LockKeys {
///         LockKey::from_parts(["account", &self.id]).into()
///     }
/// }
///
/// async fn statement(Locked(Path(account), _guard): LockedShared<Path<Account>>) -> String {
///     format!("statement of {}", account.id)
/// }
/// # let app: Router<LockManager> = Router::new()
/// #     .route("/{id}/statement", get(statement))
/// #     .layer(LockScopeLayer::new());
/// ```
pub type LockedShared<T, By = FromTarget> = Locked<T, Shared<By>>;

impl<T, By: LockBy<T>> Deref for Locked<T, By> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T, By: LockBy<T>> DerefMut for Locked<T, By> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: fmt::Debug, By: LockBy<T>> fmt::Debug for Locked<T, By> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Locked")
            .field(&self.0)
            .field(&self.1)
            .finish()
    }
}

impl<S, T, By> FromRequestParts<S> for Locked<T, By>
where
    S: Send + Sync,
    T: FromRequestParts<S> + Send,
    By: LockBy<T>,
    LockManager: FromRef<S>,
{
    type Rejection = LockedRejection<T::Rejection>;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let request_info = RequestInfo::new(&parts.method, &parts.headers);
        let locking = Locking::of(
            &mut parts.extensions,
            LockManager::from_ref(state),
            request_info,
        );
        let locking = locking.map_err(LockedRejection::Lock)?;
        let inner = T::from_request_parts(parts, state).await;
        let inner = inner.map_err(LockedRejection::Inner)?;
        let guard = locking.lock(By::lock_keys(&inner)).await;
        Ok(Self(inner, guard.map_err(LockedRejection::Lock)?))
    }
}

impl<S, T, By> FromRequest<S> for Locked<T, By>
where
    S: Send + Sync,
    T: FromRequest<S> + Send,
    By: LockBy<T>,
    LockManager: FromRef<S>,
{
    type Rejection = LockedRejection<T::Rejection>;

    async fn from_request(mut request: Request, state: &S) -> Result<Self, Self::Rejection> {
        let request_info = RequestInfo::new(request.method(), request.headers());
        let locking = Locking::of(
            request.extensions_mut(),
            LockManager::from_ref(state),
            request_info,
        );
        let locking = locking.map_err(LockedRejection::Lock)?;
        let inner = T::from_request(request, state).await;
        let inner = inner.map_err(LockedRejection::Inner)?;
        let guard = locking.lock(By::lock_keys(&inner)).await;
        Ok(Self(inner, guard.map_err(LockedRejection::Lock)?))
    }
}

/// The rejection of [`Locked`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockedRejection<R> {
    /// The extractor inside rejected the request. Nothing was locked.
    #[error("what to lock could not be read from the request")]
    Inner(#[source] R),
    /// The lock was not acquired, or the request has no scope.
    #[error("the lock for the request could not be taken")]
    Lock(#[source] LockRejection),
}

impl<R: IntoResponse> IntoResponse for LockedRejection<R> {
    fn into_response(self) -> Response {
        match self {
            Self::Inner(rejection) => rejection.into_response(),
            Self::Lock(rejection) => rejection.into_response(),
        }
    }
}

impl IntoResponse for LockRejection {
    fn into_response(self) -> Response {
        self.to_response().into_response()
    }
}

/// A handler may return this error with `?`. The response has the status of a [`LockRejection`], the problem type
/// `lock-failed-in-handler` and no `Retry-After`, because the handler may have done a part of its work.
///
/// A handler that has not worked yet can return `LockRejection::from(error)`, so that its client sends the request again.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        LockRejection::in_handler(self).into_response()
    }
}

macro_rules! pass_on {
    ($($extractor:ident),*) => {$(
        /// The locks of the value inside.
        impl<T: LockTarget> LockTarget for $extractor<T> {
            fn lock_keys(&self) -> LockKeys {
                self.0.lock_keys()
            }
        }
    )*};
}

pass_on!(Extension, Form, Json, Path, Query);
