//! The scope of a request: keeps locks until the response is complete, and watches them.
//!
//! A [`LockLayer`](crate::LockLayer) and a [`LockScopeLayer`](crate::LockScopeLayer) open one scope for each request. The
//! scope has two ends that share one state:
//!
//! - [`LockScope`], in the extensions of the request. `Locked` and the handler register guards there.
//! - [`Watch`], in the response future and then in the response body. It polls the loss futures of all
//!   registered guards, and closes the scope when it is dropped.
//!
//! # The holder of a lock
//!
//! Each hold has exactly one guard at any time, so the hold count is what it is without a scope. A guard of
//! `Locked` is *lent*: it is with the handler, and the scope is its heir and watches it through
//! [`Held`](crate::Held). A guard is *kept* if the scope has it.
//!
//! | guard | event | then | the lock |
//! |---|---|---|---|
//! | none | `Locked` acquires, the scope is open | lent | held |
//! | none | `Locked` acquires, the scope is closed | the handler's alone | released at its drop |
//! | lent | dropped, the scope is open | kept | held |
//! | lent | dropped, the scope is closed | gone | released |
//! | lent | `release().await` | gone | released at once |
//! | lent, or the handler's alone | `keep(guard)`, the scope is open | kept | held |
//! | lent, or the handler's alone | `keep(guard)`, the scope is closed | gone | released |
//! | lent | the scope closes | the handler's alone | released at its drop |
//! | kept | the scope closes | gone | released |
//! | lent or kept | lost | the handler or the body is dropped, the scope closes | lost |
//!
//! The mutex of the state orders a drop against the close. A guard that is dropped first is kept and released
//! by the close; a guard that is dropped afterwards releases itself. Guards are dropped only while the mutex
//! is free, because a release runs the engine.
//!
//! # When the scope closes
//!
//! The handler's future, or the body, is always dropped before the scope closes, so its guards are kept first
//! and released by the close.
//!
//! | end of the request | the scope closes |
//! |---|---|
//! | response without a body, or with a body in memory | at the head |
//! | `HEAD`, an upgrade, `release_at_head` | at the head; guards that the body has are then its own |
//! | streaming body | when it ends, fails or is dropped |
//! | handler dropped at any await: client disconnect, timeout | at the drop of the response future |
//! | handler panics | at the drop of the response future, by the code that catches the panic |
//! | a lock is lost | after the handler or the body is dropped; response 500, or the body fails |
//! | error of the inner service | before the error is returned |
//!
//! # Several scopes
//!
//! The innermost scope replaces the outer one in the extensions, so `Locked` registers there, and its settings
//! apply. The inner response completes first, so the inner scope closes first. This also holds for a scope in
//! a `LockLayer`, and for a `LockLayer` in a scope: the layer's own guard is beside its scope, and is
//! released after it. Guards that were lent by an outer scope, in a middleware, stay with the outer scope.
//!
//! A guard that the handler moves into a task stays lent. Its loss aborts the request while the scope is open;
//! after that it is the task's alone.
//!
//! # Wakers
//!
//! A guard that is registered during a poll of the handler is found at the end of that poll. A task of the
//! handler's own may register between two polls: then the scope wakes the request.

mod acquire;
mod layer;
mod lock_scope;
mod service;
#[cfg(feature = "axum")]
mod unread;
mod watch;

pub use self::acquire::ScopeAcquire;
pub use self::layer::LockScopeLayer;
pub use self::lock_scope::LockScope;
pub use self::service::LockScopeService;
pub(super) use self::watch::Watch;
