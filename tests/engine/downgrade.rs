//! Downgrades of guards from exclusive to shared.

use std::error::Error as _;
use std::future::IntoFuture;
use std::time::Duration;

use futures_util::poll;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, BackendError, Capabilities, ForceReleased, Hints, Holder,
    Mode, QuorumBuilder, Release, Released, Renewal, Renewed,
};
use tower_lock::manager::LostReason;
use tower_lock::{ErrorKind, LockGuard, LockKey, LockManager, Memory, Quorum};
use uuid::Uuid;

use crate::support::engine::{MS, SECOND, manager_on};
use crate::support::other_runtime::current_thread;
use crate::support::simulated::{Command, Fault, Simulated, is_free};

/// Returns two managers of one store, as in two processes.
fn two_processes() -> (LockManager, LockManager) {
    let store = Memory::new();
    (manager_on(&store), manager_on(&store))
}

/// Returns the text of the error and of its source.
fn texts(error: &tower_lock::Error) -> String {
    let source = error.source().map(ToString::to_string);
    format!("{error}: {}", source.unwrap_or_default())
}

async fn soon<F: IntoFuture>(future: F) -> F::Output {
    timeout(SECOND, future).await.unwrap()
}

/// A store with shared leases, but without downgrades.
#[derive(Clone)]
struct WithoutDowngrade {
    memory: Memory,
    modes: Capabilities,
}

impl Backend for WithoutDowngrade {
    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        Backend::try_acquire(&self.memory, request).await
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<Renewed, BackendError>> {
        self.memory.renew(renewals).await
    }

    async fn release(&self, leases: &[Release]) -> Vec<Result<Released, BackendError>> {
        Backend::release(&self.memory, leases).await
    }

    fn watch(&self, key: &LockKey, manager: Uuid) -> Hints {
        self.memory.watch(key, manager)
    }

    fn capabilities(&self) -> Capabilities {
        self.modes
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        self.memory.inspect(key).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<ForceReleased, BackendError> {
        self.memory.force_release(key, holder).await
    }
}

#[tokio::test(start_paused = true)]
async fn downgraded_guard_is_shared() {
    let (here, there) = two_processes();
    let mut guard = here.acquire("k").await.unwrap();
    let (view, exclusive) = (guard.held(), guard.fencing_token());
    soon(guard.downgrade()).await.unwrap();
    for held in [&*guard, &view] {
        assert_eq!(held.mode(), Mode::Shared);
        assert!(held.is_held() && held.fencing_token() > exclusive);
    }
    for locks in [&here, &there] {
        let reader = locks.acquire("k").shared().no_wait().await.unwrap();
        assert!(reader.fencing_token() >= guard.fencing_token());
        let error = locks.acquire("k").no_wait().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
    }
    sleep(100 * SECOND).await;
    assert!(guard.is_held(), "it is renewed");
    let shared = guard.fencing_token();
    guard.release().await.unwrap();
    assert!(!view.is_held());
    let later = there.acquire("k").no_wait().await.unwrap();
    assert!(later.fencing_token() > shared);
}

#[tokio::test(start_paused = true)]
async fn downgrade_admits_waiting_readers_and_no_writer() {
    for writer_is_here in [true, false] {
        let (here, there) = two_processes();
        let mut guard = here.acquire("k").await.unwrap();
        let mut readers = Vec::new();
        for locks in [&here, &here, &there, &there] {
            let mut reader = Box::pin(locks.acquire("k").shared().into_future());
            assert!(poll!(&mut reader).is_pending());
            readers.push(reader);
            sleep(10 * MS).await;
        }
        let locks = if writer_is_here { &here } else { &there };
        let mut writer = Box::pin(locks.acquire("k").into_future());
        assert!(poll!(&mut writer).is_pending());
        sleep(10 * MS).await;
        soon(guard.downgrade()).await.unwrap();
        let readers = soon(futures_util::future::join_all(readers)).await;
        let readers: Vec<LockGuard> = readers.into_iter().map(Result::unwrap).collect();
        assert!(poll!(&mut writer).is_pending());
        drop(guard);
        sleep(SECOND).await;
        assert!(poll!(&mut writer).is_pending());
        assert!(readers.iter().all(|reader| reader.is_held()));
        drop(readers);
        assert!(soon(writer).await.unwrap().is_held());
    }
}

/// What the holder has written stays: each writer sees how many wrote before it.
#[tokio::test(start_paused = true)]
async fn no_writer_comes_between_both_modes() {
    let wire = Simulated::new(MS);
    let written = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let writers = (0..8).map(|n| {
        let locks = manager_on(&wire.another_wire());
        let written = std::sync::Arc::clone(&written);
        tokio::spawn(async move {
            for _ in 0..20 {
                let mut guard = locks.acquire("k").wait_forever().await.unwrap();
                let own = 1 + written.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                sleep(MS * n).await;
                guard.downgrade().await.unwrap();
                sleep(MS * n).await;
                let now = written.load(std::sync::atomic::Ordering::SeqCst);
                assert_eq!(now, own, "a writer came between");
                drop(guard);
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn downgrade_of_several_holds_states_remedy() {
    let locks = LockManager::in_memory();
    let owner = locks.new_owner();
    let mut guard = locks.acquire(["a", "b"]).owner(owner).await.unwrap();
    let nested = locks.acquire("b").owner(owner).await.unwrap();
    let error = guard.downgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    let text = texts(&error);
    assert!(text.contains("2 times: release the other guards"), "{text}");
    // Neither key has changed: another exclusive hold is possible.
    assert_eq!(guard.mode(), Mode::Exclusive);
    drop(locks.acquire("a").owner(owner).no_wait().await.unwrap());
    drop(nested);
    guard.downgrade().await.unwrap();
    assert_eq!(guard.mode(), Mode::Shared);
    for key in ["a", "b"] {
        assert!(locks.acquire(key).shared().no_wait().await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn downgrade_of_permit_states_remedy() {
    let locks = LockManager::in_memory();
    let mut permit = locks.acquire("k").permits(2).await.unwrap();
    let error = permit.downgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    assert!(texts(&error).contains("permit"), "{}", texts(&error));
    assert!(permit.is_held());
}

#[tokio::test(start_paused = true)]
async fn downgrade_of_shared_guard_sends_no_command() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let mut reader = locks.acquire("k").shared().await.unwrap();
    let token = reader.fencing_token();
    reader.downgrade().await.unwrap();
    let mut writer = locks.acquire("other").await.unwrap();
    writer.downgrade().await.unwrap();
    writer.downgrade().await.unwrap();
    assert_eq!(
        (reader.fencing_token(), wire.sent(Command::Downgrade)),
        (token, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn backend_without_downgrades_keeps_exclusive_lock() {
    let exclusive = Capabilities::EXCLUSIVE;
    for modes in [exclusive, exclusive.with_shared()] {
        let memory = Memory::new();
        let store = WithoutDowngrade { memory, modes };
        let locks = manager_on(&store);
        let mut guard = locks.acquire("k").await.unwrap();
        let error = guard.downgrade().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(guard.is_held() && guard.mode() == Mode::Exclusive);
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_downgrade_leaves_exclusive_lock() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let mut guard = locks.acquire("k").await.unwrap();
    for (fault, kind) in [
        (Fault::Refused, ErrorKind::Unavailable),
        (Fault::Misconfigured, ErrorKind::Refused),
    ] {
        wire.fail_next(Command::Downgrade, fault);
        let error = guard.downgrade().await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(guard.is_held() && guard.mode() == Mode::Exclusive);
    }
    sleep(100 * SECOND).await;
    assert!(guard.is_held(), "it is renewed");
    guard.downgrade().await.unwrap();
    assert_eq!(guard.mode(), Mode::Shared);
}

#[tokio::test(start_paused = true)]
async fn downgrade_with_unknown_result_frees_key() {
    for fault in [Fault::AnswerLost, Fault::CommandLost] {
        let wire = Simulated::new(MS);
        let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
        let mut guard = here.acquire("k").await.unwrap();
        let waiter = tokio::spawn(there.acquire("k").into_future());
        sleep(10 * MS).await;
        wire.fail_next(Command::Downgrade, fault);
        let error = soon(guard.downgrade()).await.unwrap_err();
        assert!(error.is_lost(), "{fault:?}: {error:?}");
        assert_eq!(guard.lost_reason(), Some(LostReason::Downgrade));
        assert!(!guard.is_held());
        let waiter = soon(waiter).await.unwrap().unwrap();
        assert!(waiter.is_held(), "{fault:?}");
        assert!(guard.release().await.unwrap_err().is_lost());
        waiter.release().await.unwrap();
        assert!(is_free(&wire, "k").await);
    }
}

/// The command takes effect after the release of the lease.
#[tokio::test(start_paused = true)]
async fn late_downgrade_holds_nothing() {
    let wire = Simulated::new(MS);
    let locks = LockManager::builder(wire.clone()).watchdog_timeout(SECOND);
    let locks = locks.build().unwrap();
    let mut guard = locks.acquire("k").await.unwrap();
    let before = guard.remaining();
    wire.down(Some(Fault::Hung));
    let error = timeout(before + 10 * MS, guard.downgrade()).await.unwrap();
    assert!(error.unwrap_err().is_lost());
    assert_eq!(guard.lost_reason(), Some(LostReason::Expired));
    wire.down(None);
    sleep(SECOND).await;
    assert!(is_free(&wire, "k").await);
    let next = locks.acquire("k").no_wait().await.unwrap();
    assert_eq!(next.mode(), Mode::Exclusive);
}

#[tokio::test(start_paused = true)]
async fn downgrade_during_renewal_keeps_lock() {
    let wire = Simulated::new(100 * MS);
    let locks = LockManager::builder(wire.clone()).watchdog_timeout(3 * SECOND);
    let locks = locks.build().unwrap();
    for delay in [0, 50, 150, 220] {
        let mut guard = locks.acquire("k").await.unwrap();
        let renewals = wire.sent(Command::Renew);
        while wire.sent(Command::Renew) == renewals {
            sleep(MS).await;
        }
        sleep(delay * MS).await;
        soon(guard.downgrade()).await.unwrap();
        sleep(20 * SECOND).await;
        assert!(guard.is_held(), "{delay} ms after the renewal");
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn forced_release_during_downgrade_ends_guard() {
    let wire = Simulated::new(50 * MS);
    let locks = manager_on(&wire);
    let mut guard = locks.acquire("k").await.unwrap();
    let view = guard.held();
    wire.fail_next(Command::Downgrade, Fault::AnswerLost);
    let downgrade = tokio::spawn(async move { (guard.downgrade().await, guard) });
    sleep(10 * MS).await;
    assert!(locks.force_release("k").await.unwrap());
    let (outcome, guard) = soon(downgrade).await.unwrap();
    assert!(outcome.unwrap_err().is_lost());
    assert_eq!(view.lost_reason(), Some(LostReason::Forced));
    drop(guard);
    sleep(SECOND).await;
    assert!(is_free(&wire, "k").await);
    assert!(locks.snapshot().is_idle());
}

#[tokio::test(start_paused = true)]
async fn dropped_downgrade_completes_in_background() {
    for polls in 1..30 {
        let wire = Simulated::new(3 * MS);
        let locks = manager_on(&wire);
        let mut guard = locks.acquire(["a", "b"]).await.unwrap();
        let completed = {
            let mut downgrade = Box::pin(guard.downgrade());
            let mut completed = false;
            for _ in 0..polls {
                completed |= !completed && poll!(&mut downgrade).is_ready();
                sleep(MS).await;
            }
            completed
        };
        // A further call awaits the same result.
        soon(guard.downgrade()).await.unwrap();
        assert_eq!(guard.mode(), Mode::Shared, "{polls} polls");
        assert_eq!(wire.sent(Command::Downgrade), 2, "{polls} polls");
        drop(guard);
        sleep(SECOND).await;
        assert!(is_free(&wire, "a").await && is_free(&wire, "b").await);
        if completed {
            return;
        }
    }
    panic!("never ready");
}

#[tokio::test(start_paused = true)]
async fn dropped_downgrade_shares_lock_without_further_call() {
    let wire = Simulated::new(3 * MS);
    let locks = manager_on(&wire);
    let mut guard = locks.acquire("k").await.unwrap();
    assert!(poll!(Box::pin(guard.downgrade())).is_pending());
    let reader = soon(locks.acquire("k").shared()).await.unwrap();
    assert!(guard.is_held() && guard.mode() == Mode::Shared && reader.is_held());
}

#[tokio::test(start_paused = true)]
async fn owner_nests_shared_holds_during_downgrade() {
    let wire = Simulated::new(10 * MS);
    let locks = manager_on(&wire);
    let owner = locks.new_owner();
    let mut guard = locks.acquire("k").owner(owner).await.unwrap();
    let mut downgrade = Box::pin(guard.downgrade());
    assert!(poll!(&mut downgrade).is_pending());
    let error = locks.acquire("k").owner(owner).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Upgrade);
    let nested = locks.acquire("k").owner(owner).shared().no_wait();
    let nested = nested.await.unwrap();
    // The task of the downgrade sends its command. The backend may apply it before its reply.
    yield_now().await;
    assert_eq!(nested.mode(), Mode::Shared);
    soon(downgrade).await.unwrap();
    assert_eq!((nested.mode(), nested.hold_count()), (Mode::Shared, 2));
    drop(guard);
    assert!(nested.is_held());
}

/// The guard of a downgrade is dropped in flight, and its owner has a nested one.
#[tokio::test(start_paused = true)]
async fn nested_downgrade_in_flight_states_remedy() {
    let wire = Simulated::new(10 * MS);
    let locks = manager_on(&wire);
    let owner = locks.new_owner();
    let mut guard = locks.acquire("k").owner(owner).await.unwrap();
    assert!(poll!(Box::pin(guard.downgrade())).is_pending());
    yield_now().await;
    let nested = locks.acquire("k").owner(owner).shared().no_wait();
    let mut nested = nested.await.unwrap();
    drop(guard);
    let error = nested.downgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
    let source = error.source().unwrap().to_string();
    assert!(source.contains("in flight"), "{source}");
    sleep(SECOND).await;
    nested.downgrade().await.unwrap();
    let reader = soon(locks.acquire("k").shared()).await.unwrap();
    assert!(nested.is_held() && nested.mode() == Mode::Shared && reader.is_held());
}

/// The first key is shared, and the guard is lost with the second one.
#[tokio::test(start_paused = true)]
async fn unknown_result_of_one_key_loses_guard() {
    let wire = Simulated::new(MS);
    let locks = manager_on(&wire);
    let mut guard = locks.acquire(["a", "b"]).await.unwrap();
    wire.fail_next(Command::Downgrade, Fault::CommandLost);
    let error = soon(guard.downgrade()).await.unwrap_err();
    assert!(error.is_lost() && !guard.is_held());
    drop(guard);
    sleep(SECOND).await;
    assert!(is_free(&wire, "a").await && is_free(&wire, "b").await);
}

#[tokio::test(start_paused = true)]
async fn downgraded_guard_keeps_its_limits() {
    let locks = LockManager::in_memory();
    let mut capped = locks.acquire("a").max_hold(5 * SECOND).await.unwrap();
    let mut fixed = locks.acquire("b").lease(5 * SECOND).await.unwrap();
    sleep(SECOND).await;
    capped.downgrade().await.unwrap();
    fixed.downgrade().await.unwrap();
    sleep(Duration::from_millis(3_900)).await;
    assert!(capped.is_held() && fixed.is_held());
    sleep(200 * MS).await;
    assert_eq!(capped.lost_reason(), Some(LostReason::MaxHold));
    assert_eq!(fixed.lost_reason(), Some(LostReason::LeaseEnded));
}

#[tokio::test(start_paused = true)]
async fn downgrade_on_quorum_is_shared_by_majority() {
    let nodes: Vec<_> = (0..3).map(|_| Simulated::new(MS)).collect();
    let quorum = |nodes: &[Simulated]| {
        let builder = nodes.iter().cloned();
        let builder = builder.fold(Quorum::builder(), QuorumBuilder::node);
        manager_on(&builder.build().unwrap())
    };
    let (here, there) = (quorum(&nodes), quorum(&nodes));
    let mut guard = here.acquire("k").await.unwrap();
    let exclusive = guard.fencing_token();
    // The minority is down, also for the readers.
    nodes[0].down(Some(Fault::CommandLost));
    soon(guard.downgrade()).await.unwrap();
    assert!(guard.fencing_token() > exclusive);
    let reader = soon(there.acquire("k").shared()).await.unwrap();
    let error = there.acquire("k").wait(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    sleep(100 * SECOND).await;
    assert!(guard.is_held() && reader.is_held());
    drop((guard, reader));
    assert!(soon(there.acquire("k")).await.unwrap().is_held());
}

#[tokio::test(start_paused = true)]
async fn downgrade_without_majority_frees_key() {
    let nodes: Vec<_> = (0..3).map(|_| Simulated::new(MS)).collect();
    let builder = nodes.iter().cloned();
    let builder = builder.fold(Quorum::builder(), QuorumBuilder::node);
    let locks = manager_on(&builder.build().unwrap());
    let mut guard = locks.acquire("k").await.unwrap();
    for node in &nodes[..2] {
        node.fail_next(Command::Downgrade, Fault::CommandLost);
    }
    assert!(soon(guard.downgrade()).await.unwrap_err().is_lost());
    sleep(SECOND).await;
    for node in &nodes {
        assert!(is_free(node, "k").await);
    }
    // A majority that rejects it, without an effect, keeps the exclusive lock.
    let mut guard = locks.acquire("k").await.unwrap();
    for node in &nodes {
        node.fail_next(Command::Downgrade, Fault::Refused);
    }
    let error = guard.downgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(guard.is_held() && guard.mode() == Mode::Exclusive);
    // A majority rejects it, and one node makes it shared: the modes of the nodes differ.
    for node in &nodes[..2] {
        node.fail_next(Command::Downgrade, Fault::Misconfigured);
    }
    assert!(guard.downgrade().await.unwrap_err().is_lost());
}

/// The runtime of the caller ends before the command is sent, or before the reply.
#[test]
fn downgrade_outlives_runtime_of_its_caller() {
    for is_sent in [false, true] {
        let wire = Simulated::new(20 * MS);
        let locks = manager_on(&wire);
        let runtime = current_thread();
        let mut guard = runtime.block_on(async {
            let mut guard = locks.acquire("k").await.unwrap();
            assert!(poll!(Box::pin(guard.downgrade())).is_pending());
            while is_sent && wire.sent(Command::Downgrade) == 0 {
                sleep(MS).await;
            }
            guard
        });
        drop(runtime);
        current_thread().block_on(guard.downgrade()).unwrap();
        assert!(guard.is_held() && guard.mode() == Mode::Shared);
        assert_eq!(wire.sent(Command::Downgrade), 1);
    }
}
