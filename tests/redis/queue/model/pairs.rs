//! The renewals, and the scripts with two keys: each is one step on both locks.

use super::{Body, Model, Reply};
use crate::queue::expected::of_one;
use crate::queue::scripts::Call;

impl Model {
    pub(crate) fn renew(&mut self, lease: &str, ttl: i64) -> Reply {
        if self.body == Body::Foreign {
            return Reply::Error;
        }
        match &mut self.body {
            Body::Held { holder, until } if holder == lease => {
                *until = (*until).max(self.now + ttl);
                Reply::Number(1)
            }
            _ => Reply::Number(0),
        }
    }

    /// Acquires both locks under these leases, as far as they are free. With memory full, none is granted.
    pub(crate) fn acquire_both(
        locks: [&mut Self; 2],
        leases: &[String; 2],
        ttl: i64,
    ) -> [Reply; 2] {
        let mut may_grow = None;
        let [one, other] = locks;
        [(one, &leases[0]), (other, &leases[1])].map(|(lock, lease)| {
            if lock.body == Body::Foreign {
                return Reply::Error;
            }
            if lock.body != Body::Free && !lock.holds(lease) {
                return Reply::Outside(lock.left());
            }
            if !*may_grow.get_or_insert_with(|| lock.may_grow()) {
                return Reply::Error;
            }
            let (holder, until) = (lease.clone(), lock.now + ttl);
            lock.body = Body::Held { holder, until };
            Reply::Granted(0)
        })
    }

    /// Acquires both locks under these names. Free ones without a queue come first.
    pub(crate) fn share_both(locks: [&mut Self; 2], names: &[String; 2], ttl: i64) -> [Reply; 2] {
        let [one, other] = locks;
        let is_later = |lock: &Self| lock.body != Body::Free || lock.queue_exists();
        if is_later(one) && !is_later(other) {
            let second = other.share(&names[1], ttl);
            one.dirty |= other.dirty;
            return [one.share(&names[0], ttl), second];
        }
        Self::both([one, other], names, |it, name| it.share(name, ttl))
    }

    /// Keeps or releases the leases of both locks. Those without waiters come first, under counters that are taken
    /// at once.
    pub(crate) fn pass_both(locks: [&mut Self; 2], passes: &[Box<Call>; 2]) -> [Reply; 2] {
        let [one, other] = locks;
        let is_later = |lock: &Self, pass: &Call| {
            let waits_anyway = matches!(pass, Call::Pass { own: -1, .. });
            waits_anyway || lock.listeners() > 0 || lock.queue_exists()
        };
        match (is_later(one, &passes[0]), is_later(other, &passes[1])) {
            (true, false) => {
                let second = of_one(other, &passes[1]);
                one.dirty |= other.dirty;
                [of_one(one, &passes[0]), second]
            }
            (false, false) => [of_one(one, &passes[0]), of_one(other, &passes[1])],
            (_, true) => {
                let first = of_one(one, &passes[0]);
                other.dirty |= one.dirty;
                [first, of_one(other, &passes[1])]
            }
        }
    }

    /// Applies a script that removes fields of both locks, and then needs no free memory.
    pub(crate) fn both(
        locks: [&mut Self; 2],
        leases: &[String; 2],
        script: impl Fn(&mut Self, &str) -> Reply,
    ) -> [Reply; 2] {
        let [one, other] = locks;
        let first = script(one, &leases[0]);
        other.dirty |= one.dirty;
        [first, script(other, &leases[1])]
    }
}
