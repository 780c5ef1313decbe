//! What the layers and extractors around a handler share in the extensions of a request.
//!
//! | extension | holds | inserted by |
//! |---|---|---|
//! | [`Owner`] | the owner that was used last | a layer that locks, `Locked` |
//! | [`Held`] | the lock of the innermost layer that locks, with its scope | a layer that locks |
//! | [`RequestLocks`] | owners of other managers, the scope of a layer that does not lock | as needed |
//!
//! Most requests have one manager and one layer that locks, so the third extension is rare. Each extension is
//! an allocation.

use http::Extensions;
use smallvec::SmallVec;

use super::scope::LockScope;
use crate::{Held, LockManager, Owner};

#[derive(Clone, Default)]
pub(crate) struct RequestLocks {
    /// One per manager other than that of the extension `Owner`.
    others: SmallVec<[Owner; 1]>,
    /// `None` if a layer that locks is further in.
    scope: Option<LockScope>,
}

impl RequestLocks {
    /// Returns the owner of this request with `locks`, or `None` if the request has none yet.
    pub(crate) fn owner(extensions: &Extensions, locks: &LockManager) -> Option<Owner> {
        let last = extensions.get::<Owner>()?;
        if locks.has_created(*last) {
            return Some(*last);
        }
        let others = &extensions.get::<Self>()?.others;
        let mut others = others.iter().copied();
        others.find(|owner| locks.has_created(*owner))
    }

    /// Makes this the owner that was used last.
    pub(crate) fn set_owner(extensions: &mut Extensions, owner: Owner) {
        let last = extensions.insert(owner);
        if let Some(last) = last.filter(|last| *last != owner) {
            let others = &mut extensions.get_or_insert_default::<Self>().others;
            others.retain(|other| *other != owner);
            others.push(last);
        }
    }

    /// Returns the innermost scope of the request.
    pub(crate) fn scope(extensions: &Extensions) -> Option<LockScope> {
        let scope = extensions.get::<Self>().and_then(|it| it.scope.clone());
        scope.or_else(|| LockScope::of_held(extensions.get::<Held>()?))
    }

    /// Makes this the innermost scope, of a layer that does not lock.
    pub(super) fn set_scope(extensions: &mut Extensions, scope: LockScope) {
        extensions.get_or_insert_default::<Self>().scope = Some(scope);
    }

    /// Makes this the innermost scope, of a layer that locks.
    pub(super) fn set_held(extensions: &mut Extensions, held: Held, scope: LockScope) {
        if let Some(outer) = extensions.get_mut::<Self>() {
            outer.scope = None;
        }
        extensions.insert(scope.pass_with(held));
    }
}
