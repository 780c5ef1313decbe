//! What the layers and extractors around a handler share in the extensions of a request.
//!
//! | extension | holds | inserted by |
//! |---|---|---|
//! | [`Held`] | the lock of the innermost layer that locks | a layer that locks |
//! | [`Unlocked`] | why a layer let the request run without its lock | that layer, instead of [`Held`] |
//! | [`RequestLocks`] | the owners of the request and its innermost scope | a layer, `Locked` |
//! | [`Owner`] | the owner with which the request re-enters a lock of the program | the program |
//!
//! Each extension is an allocation.

use http::Extensions;
use smallvec::SmallVec;

use super::config::Unlocked;
use super::scope::LockScope;
use crate::{Error, Held, LockManager, Owner};

#[derive(Clone, Default)]
pub(crate) struct RequestLocks {
    /// One per manager. The one that was used last is the last one.
    owners: SmallVec<[Owner; 1]>,
    scope: Option<LockScope>,
    /// The scope that has the body of the request.
    #[cfg(feature = "axum")]
    unread: Option<LockScope>,
}

impl RequestLocks {
    /// Returns the owner of this request with `locks`, or `None` if the request has none yet.
    pub(crate) fn owner(extensions: &Extensions, locks: &LockManager) -> Option<Owner> {
        let mut owners = Self::owners(extensions);
        let own = owners.find(|owner| locks.has_created(*owner));
        // A middleware may have acquired with the scope.
        own.or_else(|| extensions.get::<Self>()?.scope.as_ref()?.known_owner(locks))
    }

    /// Returns the owner of the program, if there is one, and those of the layers and of `Locked`.
    pub(super) fn owners(extensions: &Extensions) -> impl Iterator<Item = Owner> {
        let of_program = extensions.get::<Owner>();
        let owners = extensions.get::<Self>().map(|it| &it.owners);
        let owners = of_program.into_iter().chain(owners.into_iter().flatten());
        owners.copied()
    }

    /// Returns the owner that was used last.
    #[cfg(feature = "axum")]
    pub(crate) fn last_owner(extensions: &Extensions) -> Option<Owner> {
        let own = extensions.get::<Self>().and_then(|it| it.owners.last());
        own.or_else(|| extensions.get()).copied()
    }

    /// Makes this the owner that was used last.
    #[cfg(feature = "axum")]
    pub(crate) fn set_owner(extensions: &mut Extensions, owner: Owner) {
        extensions.get_or_insert_default::<Self>().use_owner(owner);
    }

    /// Returns the innermost scope of the request.
    pub(crate) fn scope(extensions: &Extensions) -> Option<LockScope> {
        extensions.get::<Self>()?.scope.clone()
    }

    /// Returns the scope that has the body of the request, if one has it.
    #[cfg(feature = "axum")]
    pub(crate) fn unread(extensions: &Extensions) -> Option<LockScope> {
        extensions.get::<Self>()?.unread.clone()
    }

    #[cfg(feature = "axum")]
    pub(super) fn set_unread(extensions: &mut Extensions, scope: LockScope) {
        extensions.get_or_insert_default::<Self>().unread = Some(scope);
    }

    /// Makes this the innermost scope.
    pub(super) fn set_scope(extensions: &mut Extensions, scope: LockScope) {
        extensions.get_or_insert_default::<Self>().scope = Some(scope);
    }

    /// Adds the lock of a layer, and makes its scope the innermost one.
    pub(super) fn set_held(extensions: &mut Extensions, held: Held, scope: LockScope) {
        let locks = extensions.get_or_insert_default::<Self>();
        locks.use_owner(held.owner());
        locks.scope = Some(scope);
        extensions.insert(held);
    }

    /// Marks a request that runs without the lock of its innermost layer. The lock of an outer layer remains held, but
    /// its [`Held`] would tell the handler that it has this one.
    pub(super) fn set_unlocked(extensions: &mut Extensions, error: Error) {
        extensions.remove::<Held>();
        extensions.insert(Unlocked::new(error));
    }

    fn use_owner(&mut self, owner: Owner) {
        self.owners.retain(|other| *other != owner);
        self.owners.push(owner);
    }
}
