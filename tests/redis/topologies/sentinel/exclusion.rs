//! Mutual exclusion during failovers.

use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use tokio::time::{Instant, sleep};
use tower_lock::{FencingToken, LockGuard, LockManager};

use super::support::{Failover, GIVEN_BACK, SHORT, url};
use crate::support::engine::{MS, by, eventually, nothing_is_left, prompt_manager};
use crate::support::sentinel::SentinelSet;

/// One owner's hold of a lock.
struct Hold {
    key: String,
    /// The number of its manager.
    manager: u64,
    token: FencingToken,
    granted: Instant,
    /// The deadlines that the guard returned, each after the time of the call.
    deadlines: Vec<(Instant, Instant)>,
    ended: Instant,
}

impl Hold {
    async fn for_a_while(key: String, manager: u64, guard: LockGuard, time: Duration) -> Self {
        let granted = Instant::now();
        let mut deadlines = Vec::new();
        while granted.elapsed() < time {
            let now = Instant::now();
            deadlines.push((now, now + guard.remaining()));
            tokio::select! {
                biased;
                () = guard.lost() => break,
                () = sleep(2 * MS) => {}
            }
        }
        let ended = Instant::now();
        Self {
            key,
            manager,
            token: guard.fencing_token(),
            granted,
            deadlines,
            ended,
        }
    }

    fn deadline_at(&self, time: Instant) -> Instant {
        let before = self.deadlines.iter().rfind(|(at, _)| *at <= time);
        before.unwrap_or(&self.deadlines[0]).1
    }
}

/// Many owners contend for few locks before, during and after a failover.
async fn excludes_each_other(failover: Failover) {
    const WAIT: Duration = Duration::from_millis(400);
    let mut set = SentinelSet::start();
    let holds = Arc::<Mutex<Vec<Hold>>>::default();
    let managers = [
        prompt_manager(url(&set), SHORT).await,
        prompt_manager(url(&set), SHORT).await,
        prompt_manager(url(&set), SHORT).await,
    ];
    let contend = |n: u64, locks: &LockManager| {
        let (locks, holds) = (locks.clone(), Arc::clone(&holds));
        async move {
            for round in 0.. {
                let key = format!("k:{}", (n + round) % 2);
                let mut acquire = Box::pin(locks.acquire(&*key).wait(WAIT).into_future());
                let first = poll!(&mut acquire);
                // The wait counts from the first poll, which a busy machine may delay.
                let deadline = Instant::now() + WAIT + 50 * MS;
                let outcome = match first {
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => by(deadline, "the end of a wait", acquire).await,
                };
                let Ok(guard) = outcome else {
                    continue;
                };
                // Some are renewed.
                let long = (n + round).is_multiple_of(7);
                let time = if long { 2 * SHORT } else { 10 * MS };
                let manager = if n < 9 { n % 3 } else { 3 };
                let hold = Hold::for_a_while(key, manager, guard, time).await;
                holds.lock().unwrap().push(hold);
            }
        }
    };
    let many = (0..9).map(|n| contend(n, &managers[n as usize % 3]));
    let mut tasks: Vec<_> = many.map(tokio::spawn).collect();
    eventually("it runs", || holds.lock().unwrap().len() > 20).await;
    let old = failover.begin(&mut set);
    set.failover().await;
    let followed = Instant::now();
    // This manager connects after the failover and never saw the old primary.
    let newcomer = prompt_manager(url(&set), SHORT).await;
    tasks.extend((9..12).map(|n| tokio::spawn(contend(n, &newcomer))));
    // A manager that has not asked the sentinels since would take the old primary for the present one.
    eventually("grants to each manager", || {
        let holds = holds.lock().unwrap();
        let later = holds.iter().filter(|hold| hold.granted > followed);
        let of = |manager| later.clone().filter(|it| it.manager == manager).count();
        later.clone().count() > 20 && (0..4).all(|manager| of(manager) > 0)
    })
    .await;
    failover.end(&mut set, old).await;
    for task in tasks {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled(), "a wait was overrun");
    }
    let [one, two, three] = &managers;
    let managers = [one, two, three, &newcomer];
    nothing_is_left(set.node(set.primary()), &managers, GIVEN_BACK, failover).await;

    let mut holds = std::mem::take(&mut *holds.lock().unwrap());
    holds.sort_by_key(|hold| hold.granted);
    let mut overlaps = Vec::new();
    for (n, new) in holds.iter().enumerate() {
        for old in holds[..n].iter().filter(|old| old.key == new.key) {
            // One of the two guards reports a loss, or releases the lock.
            let ended = old.ended.min(new.ended);
            if ended > new.granted {
                // The failover lost a write. The overlap must end by the old guard's deadline.
                overlaps.push([old.granted, old.ended, new.granted, new.ended]);
                let over = old.deadline_at(new.granted) + 10 * MS;
                assert!(ended <= over, "{:?} beyond a deadline", ended - over);
            } else if failover != Failover::Commanded {
                assert!(old.token < new.token, "a token was reused");
            }
        }
    }
    let (count, of) = (overlaps.len(), holds.len());
    eprintln!("{failover:?}: {of} holds, {count} overlaps");
    // A failover outlasts a lease unless the old primary replies until the end of the failover.
    let none = failover == Failover::Commanded || overlaps.is_empty();
    assert!(
        none,
        "followed at {followed:?}: {overlaps:?}\n{}",
        set.logs()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_primary_keeps_mutual_exclusion() {
    excludes_each_other(Failover::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_primary_keeps_mutual_exclusion() {
    excludes_each_other(Failover::Stopped).await;
}

/// The old primary grants locks until its clients leave it, and the failover loses those grants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commanded_failover_bounds_overlap_by_deadline() {
    excludes_each_other(Failover::Commanded).await;
}
