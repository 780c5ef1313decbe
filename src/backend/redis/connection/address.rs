//! What the connections of this process to one address have in common.
//!
//! An address may lead to another server than before, as after a failover behind a virtual address, a service name or a
//! load balancer, while open connections stay at the former server. The first of them that answers for the wrong server
//! puts the address in doubt:
//!
//! - A connection from before is doubtful: a check of the role precedes its next command.
//! - New connections are opened one after another with growing pauses, for all pools and subscriptions, until one
//!   answers a script.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::backoff::backoff;
use crate::backend::BackendError;
use crate::backend::redis::command::{Cause, unavailable};
use crate::mutex::Mutex;

/// An address that leads to a wrong server within this time of the last one still leads there.
const STEADY: Duration = Duration::from_secs(2);
/// The pauses between connections. At most 10 begin within 3 s.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// The addresses with connections, and those in doubt.
static KNOWN: Mutex<BTreeMap<String, Arc<Address>>> = Mutex::new(BTreeMap::new());

#[derive(Debug, Default)]
pub(crate) struct Address {
    /// How often a connection turned out to lead to a wrong server.
    moves: AtomicU64,
    /// The last move after which a connection answered a script.
    settled: AtomicU64,
    dials: Mutex<Dials>,
    /// Notified when the address is no longer in doubt, and when it still leads to a wrong server.
    changed: Notify,
}

/// The connections that were opened in doubt.
#[derive(Debug, Default)]
struct Dials {
    count: u32,
    next: Option<Instant>,
    wrong_at: Option<Instant>,
}

impl Address {
    /// Returns the address with this name.
    pub(super) fn named(name: &str) -> Arc<Self> {
        let mut known = KNOWN.lock();
        if let Some(address) = known.get(name) {
            return Arc::clone(address);
        }
        known.retain(|_, it| Arc::strong_count(it) > 1 || it.dials.lock().is_recent());
        Arc::clone(known.entry(name.to_owned()).or_default())
    }

    fn is_in_doubt(&self) -> bool {
        self.settled.load(Ordering::SeqCst) != self.moves.load(Ordering::SeqCst)
    }

    /// Returns a visit for a connection that may be opened now. In doubt, it waits for its turn, and fails if another
    /// connection finds a wrong server. The caller sets the time limit.
    pub(super) async fn admit(self: &Arc<Self>) -> Result<Visit, BackendError> {
        loop {
            // Registered before the look, or a change between the two would be missed.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let visit = self.visit();
            let next = match self.is_in_doubt() {
                true => self.dials.lock().next_turn(),
                false => None,
            };
            let Some(next) = next else { return Ok(visit) };
            tokio::select! {
                () = sleep_until(next) => {}
                () = changed => if self.is_in_doubt() {
                    return Err(unavailable(Cause::NotPrimary));
                }
            }
        }
    }

    /// Returns a visit without a turn, for a connection that its owner opens for the first time.
    pub(super) fn visit(self: &Arc<Self>) -> Visit {
        Visit {
            seen: AtomicU64::new(self.moves.load(Ordering::SeqCst)),
            address: Arc::clone(self),
        }
    }
}

impl Dials {
    fn is_recent(&self) -> bool {
        self.wrong_at.is_some_and(|at| at.elapsed() <= STEADY)
    }

    /// Takes the turn, or returns when it comes.
    fn next_turn(&mut self) -> Option<Instant> {
        let now = Instant::now();
        if let Some(next) = self.next
            && now < next
        {
            return Some(next);
        }
        self.count = self.count.saturating_add(1);
        self.next = Some(now + backoff(self.count, FIRST_PAUSE, LONGEST_PAUSE));
        None
    }
}

/// A connection to an address.
#[derive(Debug)]
pub(crate) struct Visit {
    address: Arc<Address>,
    /// The last move that the connection was opened or checked after.
    seen: AtomicU64,
}

impl Visit {
    /// Returns `true` if another connection to the address answered for a wrong server, and this one was not checked
    /// since.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.seen.load(Ordering::Relaxed) != self.moves()
    }

    /// Returns when a connection to the address last answered for a wrong server.
    pub(super) fn wrong_at(&self) -> Option<Instant> {
        self.address.dials.lock().wrong_at
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.address.is_in_doubt()
    }

    pub(crate) fn moves(&self) -> u64 {
        self.address.moves.load(Ordering::Relaxed)
    }

    /// Records the role of a primary, for which the server was asked after so many moves.
    pub(crate) fn checked(&self, moves: u64) {
        self.seen.fetch_max(moves, Ordering::Relaxed);
    }

    /// Records that the connection answered a script.
    pub(crate) fn answered(&self) {
        let moves = self.moves();
        // The loads keep the usual case free of writes.
        if self.address.settled.load(Ordering::Relaxed) != moves && !self.is_doubtful() {
            self.address.settled.fetch_max(moves, Ordering::SeqCst);
            self.address.changed.notify_waiters();
        }
    }

    /// Records an answer for a wrong server. A doubtful connection shows nothing new.
    pub(crate) fn misled(&self) {
        let mut dials = self.address.dials.lock();
        if self.is_doubtful() {
            return;
        }
        if !dials.is_recent() {
            *dials = Dials::default();
        }
        dials.wrong_at = Some(Instant::now());
        self.address.moves.fetch_add(1, Ordering::SeqCst);
        drop(dials);
        self.address.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;

    /// Connects until `limit`, always to a wrong server. Returns the times since `start`.
    async fn misled_dials(address: Arc<Address>, start: Instant, limit: Duration) -> Vec<Duration> {
        let mut times = Vec::new();
        while start.elapsed() < limit {
            if let Ok(visit) = address.admit().await {
                times.push(start.elapsed());
                visit.misled();
            }
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_server_gets_few_connections() {
        let (address, start) = (Arc::<Address>::default(), Instant::now());
        address.visit().misled();
        let limit = Duration::from_secs(30);
        let dials = (0..50).map(|_| misled_dials(Arc::clone(&address), start, limit));
        let mut times = join_all(dials).await.concat();
        times.sort();
        assert_eq!(times[0], Duration::ZERO);
        for (first, eleventh) in times.iter().zip(&times[10..]) {
            let within = *eleventh - *first;
            assert!(within >= Duration::from_secs(3), "{within:?}");
        }
        assert!(times.len() >= 65, "{}", times.len());
    }

    #[tokio::test(start_paused = true)]
    async fn answered_script_ends_doubt_for_all() {
        let address = Arc::<Address>::default();
        let (old, other) = (address.visit(), address.visit());
        old.misled();
        assert!(old.is_doubtful() && other.is_doubtful());
        let new = address.admit().await.expect("its turn");
        let start = Instant::now();
        let (_, others) = tokio::join!(
            async { new.answered() },
            join_all((0..9).map(|_| address.admit()))
        );
        assert!(others.iter().all(Result::is_ok) && start.elapsed().is_zero());
        other.misled();
        assert!(!new.is_doubtful() && !address.is_in_doubt(), "nothing new");
        other.checked(other.moves());
        assert!(!other.is_doubtful());
    }
}
