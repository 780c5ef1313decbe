//! The extractors that show what is locked.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::request::Parts;

use super::missing::{Extractor, MissingLayer};
use crate::layer::RequestLocks;
use crate::{Held, LockScope, Owner};

/// What the innermost [`LockLayer`](crate::LockLayer) around the handler holds.
impl<S: Send + Sync> FromRequestParts<S> for Held {
    type Rejection = MissingLayer;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let held = parts.extensions.get().cloned();
        held.ok_or_else(|| MissingLayer::of(Extractor::Held, &parts.extensions))
    }
}

/// `None` if the request passed unlocked.
impl<S: Send + Sync> OptionalFromRequestParts<S> for Held {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().cloned())
    }
}

/// The owner of this request. With [`Acquire::owner`](crate::manager::Acquire::owner), an acquire in the handler
/// re-enters what the request already holds.
///
/// A request has one owner per manager. This is the owner of the innermost layer, or of the `Locked` before it
/// in the arguments.
impl<S: Send + Sync> FromRequestParts<S> for Owner {
    type Rejection = MissingLayer;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let owner = RequestLocks::last_owner(&parts.extensions);
        owner.ok_or_else(|| MissingLayer::of(Extractor::Owner, &parts.extensions))
    }
}

/// `None` if the request has acquired no lock.
impl<S: Send + Sync> OptionalFromRequestParts<S> for Owner {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(RequestLocks::last_owner(&parts.extensions))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for LockScope {
    type Rejection = MissingLayer;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let scope = Self::of(&parts.extensions);
        scope.ok_or_else(|| MissingLayer::of(Extractor::Scope, &parts.extensions))
    }
}

/// `None` without a layer that opens a scope.
impl<S: Send + Sync> OptionalFromRequestParts<S> for LockScope {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(Self::of(&parts.extensions))
    }
}
