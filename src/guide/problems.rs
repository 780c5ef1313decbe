//! Problem types: for developers of clients that receive a rejection, and for operators.
//!
//! A rejection is a document of RFC 9457 whose `type` is the address of a section of this page. `title` is constant
//! per type, and `detail` is for readers. `waited_ms` is the time that the request has waited, and `retry_after_ms`
//! the time of `Retry-After` in milliseconds, at least 1. It is an estimate, not a reservation: another request can be
//! first. A gRPC client receives a status instead, with the hint in `grpc-retry-pushback-ms`.
//!
//! # resource-busy
//!
//! Status 409, or 423 if the layer is set so. Another request held the resource for the whole wait. Nothing was
//! done. Send the request again after `Retry-After`. If it happens often, the handlers are slow or many requests
//! name the same resource.
//!
//! # permits-exhausted
//!
//! Status 429, or another one if the layer is set so. As many requests as the server permits worked on this resource for
//! the whole wait, or one that excludes them. Nothing was done. Send the request again after `Retry-After`. The limit
//! is that of [`permits`](crate::LockLayer::permits).
//!
//! # too-many-waiters
//!
//! Status 429. As many requests wait for this resource as the server permits. Nothing was done. Send the request
//! again after `Retry-After`. The limit is
//! [`max_waiters_per_key`](crate::LockManagerBuilder::max_waiters_per_key).
//!
//! # lock-overload
//!
//! Status 503. As many requests wait for locks as this instance permits. Nothing was done. Send the request again
//! after `Retry-After`. The limit is [`max_waiters`](crate::LockManagerBuilder::max_waiters).
//!
//! # lock-unavailable
//!
//! Status 503. The lock backend did not reply within the wait, or rejects this server. Nothing was done. With
//! `Retry-After`, send the request again after it. Without, an operator must first change the configuration; the log
//! of the service names the cause if the service has the feature `tracing` and a subscriber.
//! [`operations`](super::operations#what-to-do-when) lists the steps for operators.
//!
//! # shutting-down
//!
//! Status 503. This instance is stopping. Nothing was done. Send the request again; another instance serves it.
//!
//! # lock-lost
//!
//! Status 500. The lock was lost while the handler ran, so the handler was stopped. The request may be half done. Read
//! the state of the resource before you send the request again. The lock is lost if its backend forgets it, does not
//! reply for a lease, or if the request exceeds [`max_hold`](crate::LockLayer::max_hold).
//!
//! # lock-key-invalid
//!
//! Status 400. The request does not name a resource: a header, a parameter or a part of the path is absent or
//! malformed. `detail` states which. Nothing was done. The same request fails again.
//!
//! # no-route
//!
//! Status 404. No route of the server matches the path, and the method is not safe. Nothing was done. The same request
//! fails again.
//!
//! # lock-misconfigured
//!
//! Status 500. The server requires a part of the request that its own routes or layers never provide, or its handler
//! locks with [`Locked`](crate::Locked) outside of a [`LockScopeLayer`](crate::LockScopeLayer). Nothing was
//! done. The log of the server names the layer and the remedy, with the feature `tracing`.
//!
//! # lock-key-conflict
//!
//! Status 500, for one of two causes:
//!
//! - The backend has something else under the name of this lock. Nothing was done. An operator must choose another prefix
//!   or remove the foreign key.
//! - The request holds the lock [shared](super::shared) and the server asked for a permit of it, or the reverse. Nothing
//!   was done, and a retry fails as well. The server must release the first one before, or use one mode.
//!
//! # lock-reentrancy
//!
//! Status 500. The request acquired the same lock more than 64 times at once. Nothing was done.
//!
//! # lock-upgrade
//!
//! Status 500. The request holds its lock shared, or a permit of it, and the server asked for the same lock exclusively.
//! Two such requests would wait for each other. This is a mistake of the server, so a retry fails as well. Its operator
//! must release the lock or the permit first, or lock exclusively from the start.
//!
//! # lock-option-invalid
//!
//! Status 500. A layer of the server acquired a lock with a setting out of bounds, or with a mode that its backend does not
//! support. The log of the server names the setting at the level `debug`, with the feature `tracing`.
//!
//! # lock-failed-in-handler
//!
//! Status 409, 400, 423, 429, 500 or 503, as without a handler. The handler of the request acquired a lock of its own, or used
//! one, and failed. The request may be half done. Read the state of the resource before you send the request again. There
//! is no `Retry-After`, because the server does not know what its handler has done. A handler that has done nothing can
//! respond as a layer does: see [`http`](super::http#layer-extractor-or-scope).
