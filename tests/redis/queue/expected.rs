//! The effects of calls on the reference.

use super::model::{Model, Reply};
use super::scripts::Call;

/// Applies a call to both locks of the reference, whose scripts have just begun.
pub(crate) fn expected(locks: [&mut Model; 2], call: &Call) -> Reply {
    let [first, second] = match call {
        Call::AcquireBoth { leases, ttl } => Model::acquire_both(locks, leases, *ttl),
        Call::ShareBoth { leases, ttl } => Model::share_both(locks, leases, *ttl),
        Call::RenewBoth { leases, ttl } => {
            Model::both(locks, leases, |it, lease| it.renew(lease, *ttl))
        }
        Call::RenewSharedBoth { leases, ttl } => {
            Model::both(locks, leases, |it, name| it.renew_shared(name, *ttl, false))
        }
        Call::ReleaseBoth(leases) => Model::both(locks, leases, Model::release),
        Call::LeaveBoth(leases) => Model::both(locks, leases, Model::leave),
        Call::PassBoth(passes) => Model::pass_both(locks, passes),
        Call::Second(call) => return of_one(locks[1], call),
        call => return of_one(locks[0], call),
    };
    Reply::Each([Box::new(first), Box::new(second)])
}

pub(crate) fn of_one(model: &mut Model, call: &Call) -> Reply {
    match call {
        Call::Acquire { lease, ttl } => model.acquire(lease, *ttl),
        Call::Contend {
            lease,
            ttl,
            listens,
        } => model.contend(lease, *ttl, *listens),
        Call::Release(lease) => model.release(lease),
        Call::Leave(lease) => model.leave(lease),
        Call::Force { holder, spares } => model.force_release(holder, *spares),
        Call::Pass {
            lease,
            ttl,
            own,
            next,
        } => {
            let next = next.as_ref();
            let next = next.map(|(lease, listens)| (lease.as_str(), *listens));
            model.pass(lease, *ttl, *own, next)
        }
        Call::Share { lease, ttl } => model.share(lease, *ttl),
        Call::RenewShared { lease, ttl, alone } => model.renew_shared(lease, *ttl, *alone),
        Call::Downgrade { lease, ttl, alone } => model.downgrade(lease, *ttl, *alone),
        Call::Inspect => model.inspect(),
        Call::Renew { lease, ttl } => model.renew(lease, *ttl),
        other => unreachable!("{other:?} is for two locks"),
    }
}
