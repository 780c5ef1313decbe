use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::entry::Entry;
use super::*;
use crate::backend::subscribers::Subscribers;
use crate::backend::waiters::{Place, Waiters};
use crate::backend::{LeaseId, Mode};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the capacities of the key's subscribers, and of the two maps.
fn capacities(memory: &Memory, key: &LockKey) -> [usize; 3] {
    let state = memory.state.lock();
    let subscribers = state.watchers.get(key).map_or(0, Subscribers::capacity);
    [
        subscribers,
        state.leases.capacity(),
        state.watchers.capacity(),
    ]
}

fn acquire(memory: &Memory, key: &LockKey, lease: LeaseId) {
    let request = AcquireRequest::new(key.clone(), lease, Duration::from_secs(60));
    let outcome = memory.acquired(&request, Instant::now());
    assert!(matches!(outcome, Acquired::Granted { .. }));
}

fn lease(number: u64) -> LeaseId {
    LeaseId::new(Uuid::nil(), number)
}

#[test]
fn counters_continue_after_last() {
    let mut state = MemoryState {
        counter: Some(5),
        ..MemoryState::default()
    };
    assert_eq!((state.next_counters(2), state.next_counters(1)), (6, 8));
}

#[test]
fn lease_is_live_until_its_end() {
    let (mut state, key, now) = (MemoryState::default(), LockKey::new("k"), Instant::now());
    let ttl = Duration::from_secs(60);
    let request = |number| AcquireRequest::new(key.clone(), lease(number), ttl);
    state.try_acquire(&request(1), now, |_| 1);
    let end = now + ttl;
    let before = end - Duration::from_nanos(1);
    assert!(matches!(
        state.try_acquire(&request(2), before, |_| 2),
        Acquired::Busy { .. }
    ));
    assert!(matches!(
        state.try_acquire(&request(2), end, |_| 2),
        Acquired::Granted { .. }
    ));
}

#[test]
fn left_waiter_is_passed_over() {
    let (mut state, key, now) = (MemoryState::default(), LockKey::new("k"), Instant::now());
    let ttl = Duration::from_secs(60);
    for number in 1..=2 {
        let request = AcquireRequest::new(key.clone(), lease(number), ttl);
        state.contend(&request, now);
    }
    let leaver = Release::new(key.clone(), lease(2));
    assert_eq!(state.leave(&leaver, now), Released::NotHeld);
    let holder = Release::new(key.clone(), lease(1));
    assert_eq!(state.release(&holder, now), Released::Released);
}

#[test]
fn reply_counts_waiters_of_key() {
    let (mut state, key, now) = (MemoryState::default(), LockKey::new("k"), Instant::now());
    assert_eq!(state.queued(&key, now), 0);
    for number in 0..3 {
        let request = AcquireRequest::new(key.clone(), lease(number), MINUTE).with_listening(true);
        let reply = state.contend(&request, now);
        let queued = match reply {
            Contended::Waiting { queued, .. } => queued,
            _ => None,
        };
        assert_eq!(queued, u32::try_from(number).ok().filter(|it| *it > 0));
    }
    assert_eq!(state.queued(&key, now), 2);
}

/// Returns a state with `live` and 1000 ended leases, subscriptions and queues each, which is swept next.
fn unswept(live: usize, now: Instant) -> (MemoryState, Vec<Hints>) {
    let (mut state, mut subscriptions) = (MemoryState::default(), Vec::new());
    for n in 0..live + 1_000 {
        let is_live = n < live;
        let key = LockKey::new(format!("k{n}"));
        let (sender, hints) = Hints::channel();
        let expires = if is_live {
            now + Duration::from_secs(1)
        } else {
            now
        };
        let lease = lease(1);
        state
            .leases
            .insert(key.clone(), Entry::new(lease, Mode::Exclusive, expires));
        let watchers = state.watchers.entry(key.clone()).or_default();
        watchers.push(None, sender);
        if is_live {
            state.enter(&key, Place::exclusive(lease, false), now);
            subscriptions.push(hints);
        } else {
            state.queues.insert(key, Waiters::default());
        }
    }
    (state, subscriptions)
}

#[test]
fn sweep_keeps_only_what_is_live() {
    let now = Instant::now();
    let (mut state, _subscriptions) = unswept(100, now);
    state.sweep(now);
    let sizes = |state: &MemoryState| {
        [
            (state.leases.len(), state.leases.capacity()),
            (state.watchers.len(), state.watchers.capacity()),
            (state.queues.len(), state.queues.capacity()),
        ]
    };
    for (len, capacity) in sizes(&state) {
        assert_eq!(len, 100);
        assert!((200..1_000).contains(&capacity), "{capacity}");
    }
    assert_eq!(state.sweep_at, 600);
}

#[test]
fn sweep_waits_for_enough_entries_or_few() {
    let now = Instant::now();
    // There are 3000 entries.
    for (sweep_at, swept) in [
        (3_001, false),
        (3_000, true),
        (24_000, false),
        (24_008, true),
    ] {
        let (mut state, _) = unswept(0, now);
        state.sweep_at = sweep_at;
        state.sweep(now);
        assert_eq!(state.leases.is_empty(), swept, "at {sweep_at}");
    }
}

#[test]
fn counters_start_at_clock_and_never_repeat() {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut state = MemoryState::default();
    let first = state.next_counters(1);
    assert!(u128::from(first) > since_epoch.as_micros(), "{first}");
    assert_eq!(state.next_counters(7), first + 1);
    assert_eq!(state.next_counters(1), first + 8);
}

#[test]
fn short_watches_on_held_key_stay_bounded() {
    let (memory, key) = (Memory::new(), LockKey::new("k"));
    acquire(&memory, &key, LeaseId::new(Uuid::new_v4(), 1));
    let live: Vec<_> = (0..3).map(|_| memory.watch(&key, Uuid::nil())).collect();
    for _ in 0..100_000 {
        drop(memory.watch(&key, Uuid::nil()));
        let [subscribers, ..] = capacities(&memory, &key);
        assert!(subscribers <= 8, "{subscribers} for {}", live.len());
    }
}

#[test]
fn many_live_watches_are_pruned_rarely() {
    let (memory, key) = (Memory::new(), LockKey::new("k"));
    let live: Vec<_> = (0..1_000)
        .map(|_| memory.watch(&key, Uuid::nil()))
        .collect();
    let mut walks = 0;
    for _ in 0..10_000 {
        let before = memory.state.lock().watchers[&key].len();
        drop(memory.watch(&key, Uuid::nil()));
        walks += usize::from(memory.state.lock().watchers[&key].len() <= before);
    }
    assert!(walks <= 10, "{walks} walks over {} watches", live.len());
}

#[test]
fn burst_of_watches_is_shrunk_at_release() {
    let (memory, key) = (Memory::new(), LockKey::new("k"));
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    acquire(&memory, &key, lease);
    let live = memory.watch(&key, Uuid::nil());
    let burst: Vec<_> = (0..10_000)
        .map(|_| memory.watch(&key, Uuid::nil()))
        .collect();
    drop(burst);
    let release = Release::new(key.clone(), lease);
    let outcome = memory.released(&release, Instant::now());
    assert_eq!(outcome, Released::Released);
    let [subscribers, ..] = capacities(&memory, &key);
    assert!(subscribers <= 8, "{subscribers}");
    drop(live);
}

#[test]
fn held_keys_are_swept_rarely() {
    let memory = Memory::new();
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    for n in 0..200 {
        acquire(&memory, &LockKey::new(format!("k{n}")), lease);
    }
    assert_eq!(memory.state.lock().sweep_at, 256);
}

#[test]
fn burst_of_keys_is_shrunk_afterwards() {
    let memory = Memory::new();
    let lease = LeaseId::new(Uuid::new_v4(), 1);
    let keys: Vec<_> = (0..10_000).map(|n| LockKey::new(format!("k{n}"))).collect();
    let hints: Vec<_> = keys
        .iter()
        .map(|key| memory.watch(key, Uuid::nil()))
        .collect();
    keys.iter().for_each(|key| acquire(&memory, key, lease));
    drop(hints);
    for key in &keys {
        let release = Release::new(key.clone(), lease);
        memory.released(&release, Instant::now());
    }
    acquire(&memory, &keys[0], lease);
    let [_, leases, watchers] = capacities(&memory, &keys[0]);
    assert!(leases <= 200 && watchers <= 200, "{leases}, {watchers}");
}

#[test]
fn commands_need_no_runtime() {
    let (memory, key, holder) = (Memory::new(), LockKey::new("k"), lease(1));
    let commands = async {
        let ttl = Duration::from_secs(60);
        let request = AcquireRequest::new(key.clone(), holder, ttl);
        assert!(memory.try_acquire(&request).await.is_ok());
        let request = AcquireRequest::new(key.clone(), lease(2), ttl);
        assert!(memory.contend(&request).await.is_ok());
        assert!(memory.inspect(&key).await.is_ok());
        let renewed = memory
            .renew(&[Renewal::new(key.clone(), holder, ttl)])
            .await;
        assert!(renewed.iter().all(Result::is_ok));
        let request = KeepRequest::new(key.clone(), holder, ttl);
        assert!(
            memory
                .release_or_keep(std::slice::from_ref(&request))
                .await
                .remove(0)
                .is_ok()
        );
        memory.leave(&[Release::new(key.clone(), lease(2))]).await;
        memory.release(&[Release::new(key.clone(), holder)]).await;
        assert!(memory.force_release(&key, None).await.is_ok());
    };
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(commands).poll(&mut context).is_ready());
}

#[test]
fn time_before_last_command_is_accepted() {
    let (memory, key) = (Memory::new(), LockKey::new("k"));
    let early = Instant::now();
    std::thread::sleep(Duration::from_millis(1));
    acquire(&memory, &key, lease(1));
    let request = AcquireRequest::new(key.clone(), lease(2), Duration::from_secs(60));
    assert!(matches!(
        memory.acquired(&request, early),
        Acquired::Busy { .. }
    ));
    let release = Release::new(key, lease(1));
    assert_eq!(memory.released(&release, early), Released::Released);
}
