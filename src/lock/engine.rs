//! What all handles, guards and tasks of one manager share, and how the lanes' orders are
//! carried out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Semaphore;
use uuid::Uuid;

use super::contender::Contention;
use super::extension::extend;
use super::grant::Grant;
use super::guard::Hold;
use super::lanes::Lanes;
use super::lease::LeaseNumber;
use super::moment::Moment;
use super::options::Options;
use super::order::{Granted, Left, Next, Report, Waiter};
use super::releaser::{Releaser, carry_out};
use super::watchdog::Watchdog;
use crate::backend::{ErasedBackend, LeaseId};
use crate::task::Spawner;
use crate::{Error, ErrorKind, LockKey, Owner};

/// What every request writes lies on cache lines of its own, apart from what it reads: the count of
/// clones, by this alignment, [`Releaser`] and [`Numbers`].
#[repr(align(128))]
pub(super) struct Engine {
    pub(super) backend: Arc<dyn ErasedBackend>,
    pub(super) options: Options,
    pub(super) lanes: Lanes,
    /// The seats of all waiters of this manager.
    pub(super) seats: Arc<Semaphore>,
    pub(super) spawner: Spawner,
    pub(super) releaser: Releaser,
    pub(super) watchdog: Watchdog,
    closing: AtomicBool,
    id: Uuid,
    numbers: Numbers,
}

#[repr(align(128))]
struct Numbers(AtomicU64);

impl Engine {
    pub(super) fn new(backend: Arc<dyn ErasedBackend>, options: Options) -> Self {
        Self {
            backend,
            lanes: Lanes::new(),
            seats: Arc::new(Semaphore::new(options.max_waiters)),
            options,
            spawner: Spawner::default(),
            releaser: Releaser::default(),
            watchdog: Watchdog::new(),
            closing: AtomicBool::new(false),
            id: Uuid::new_v4(),
            numbers: Numbers(AtomicU64::new(1)),
        }
    }

    /// Never the same twice, and larger each time.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.0.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn new_owner(&self) -> Owner {
        Owner::new(self.id, self.next_number())
    }

    pub(super) fn new_lease_id(&self) -> LeaseId {
        LeaseId::new(self.id, self.next_number())
    }

    pub(super) fn lease_id(&self, number: LeaseNumber) -> LeaseId {
        LeaseId::new(self.id, number.get())
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Sorts what is about keys by the groups of the backend, which go in commands of their own.
    pub(super) fn in_groups<T>(&self, items: Vec<T>, key: impl Fn(&T) -> &LockKey) -> Vec<Vec<T>> {
        let group = |item: &T| self.backend.group(key(item));
        let [first, more @ ..] = &items[..] else {
            return Vec::new();
        };
        let share = |of_first: u64| more.iter().all(|item| group(item) == of_first);
        // There is mostly one item, or one group.
        if more.is_empty() || share(group(first)) {
            return vec![items];
        }
        let mut groups = BTreeMap::<u64, Vec<T>>::new();
        for item in items {
            groups.entry(group(&item)).or_default().push(item);
        }
        groups.into_values().collect()
    }

    /// Refuses what comes from now on, and whoever waits.
    ///
    /// An acquire looks at the flag under the mutex of its shard, which is taken here after the flag is
    /// set, whenever it enters a lane or queues: it sees the flag, or is found in the queue.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        let mut waiters = Vec::new();
        self.lanes
            .for_each(|_, lane| waiters.append(&mut lane.dismiss()));
        let error = Error::new(ErrorKind::ShuttingDown);
        refuse(waiters.into_iter().map(|waiter| (waiter, error.clone())));
    }

    /// Turns a grant into a hold, and has the watchdog look after it.
    pub(super) fn hold(self: &Arc<Self>, granted: Granted) -> Hold {
        self.watchdog.look_at(self, granted.next_look);
        Hold::new(Arc::clone(self), granted.grant)
    }

    /// Carries out what an event of a lane asked for. No mutex is held here.
    pub(super) fn follow(self: &Arc<Self>, key: &LockKey, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Grant(reply, granted, refused, ask_ahead) => {
                refuse(refused);
                let hold = self.hold(granted);
                if let Some(number) = ask_ahead {
                    self.spawner
                        .spawn(extend(Arc::clone(self), key.clone(), number));
                }
                // If the waiter left at this moment, the hold comes back and is dropped here,
                // which releases it.
                drop(reply.send(Ok(hold)));
            }
            Next::Look(at) => self.watchdog.look_at(self, at),
            Next::Return => self.releaser.enqueue(self, key.clone()),
            Next::Contend { bell, behind } => {
                Contention::new(Arc::clone(self), key.clone()).spawn(bell, behind);
            }
        }
    }

    /// Ends one hold. The answer comes through `report` when the lease is with the backend, or is
    /// given here at once.
    pub(super) fn release(
        self: &Arc<Self>,
        grant: &Arc<Grant>,
        report: Option<Report>,
    ) -> Option<Result<(), Error>> {
        let key = grant.key();
        let now = Moment::now();
        let immediate = self.backend.immediate();
        let (left, at_once) = self.lanes.with(key, |lane| {
            let left = lane.release(key, grant, now, report);
            let returning = matches!(left, Left::Returning(_));
            // The releaser would come at once, and look for the lane again.
            let at_once = immediate
                .filter(|_| returning)
                .and_then(|backend| Some((backend, lane.take_return(now)?)));
            (left, at_once)
        });
        if now >= grant.valid_until() {
            // It was over before the watchdog came by.
            grant.lose();
        }
        match left {
            Left::Done(next) => {
                self.follow(key, next);
                Some(Ok(()))
            }
            Left::Returning(next) => {
                match at_once {
                    Some((backend, order)) => carry_out(self, backend, key, order, now),
                    None => self.follow(key, next),
                }
                None
            }
            Left::Lost => Some(Err(Error::new(ErrorKind::Lost))),
        }
    }
}

/// Turns waiters away. No mutex is held here.
pub(super) fn refuse(waiters: impl IntoIterator<Item = (Waiter, Error)>) {
    for (waiter, error) in waiters {
        // It may have stopped waiting.
        drop(waiter.reply.send(Err(error)));
    }
}
