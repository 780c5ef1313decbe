//! Order, fairness and command counts with many waiters, processes and locks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_lock::{LockManager, Memory};

use crate::support::engine::{MS, SECOND, manager_on};
use crate::support::simulated::{Command, Simulated};

#[tokio::test(start_paused = true)]
async fn remote_release_to_10000_waiters_needs_few_commands() {
    let wire = Simulated::new(MS);
    let here = LockManager::builder(wire.clone())
        .max_waiters_per_key(10_000)
        .build()
        .unwrap();
    let there = manager_on(&wire.another_wire());
    let guard = there.acquire("k").await.unwrap();
    let waiters: Vec<_> = (0..10_000)
        .map(|_| {
            let acquire = here.acquire("k").wait_forever();
            tokio::spawn(async move { acquire.await.unwrap().fencing_token() })
        })
        .collect();
    sleep(100 * MS).await;
    assert_eq!(here.snapshot().waiting, 10_000);
    let mut last = guard.fencing_token();
    drop(guard);
    for waiter in waiters {
        let token = waiter.await.unwrap();
        assert!(token > last, "served out of order");
        last = token;
    }
    assert_eq!(wire.most_in_flight(), 1);
    // One command per 256 grants, and a few at the start.
    let commands = wire.log().len();
    assert!(commands <= 10_000 / 256 + 10, "{commands} commands");
}

#[tokio::test(start_paused = true)]
async fn busy_local_queue_lets_other_process_acquire() {
    let wire = Simulated::new(Duration::from_micros(200));
    let (here, there) = (manager_on(&wire), manager_on(&wire.another_wire()));
    let hog = |locks: LockManager| {
        tokio::spawn(async move {
            loop {
                let guard = locks.acquire("k").wait_forever().await.unwrap();
                sleep(MS).await;
                drop(guard);
            }
        })
    };
    let hogs: Vec<_> = (0..16).map(|_| hog(here.clone())).collect();
    sleep(10 * MS).await;
    for _ in 0..20 {
        let guard = there.acquire("k").wait(SECOND).await.expect("its turn");
        sleep(MS).await;
        drop(guard);
        sleep(5 * MS).await;
    }
    for hog in hogs {
        hog.abort();
    }
}

/// The latency grows by 1 ms per process: in a plain race the nearest process would always win.
#[tokio::test(start_paused = true)]
async fn processes_at_unequal_distance_share_key() {
    const PROCESSES: usize = 4;
    const WAITERS: usize = 16;
    let wire = Simulated::new(MS);
    let (sender, mut grants) = tokio::sync::mpsc::unbounded_channel();
    let mut workers = tokio::task::JoinSet::new();
    for process in 0..PROCESSES {
        let mut wire = wire.another_wire();
        wire.latency += u32::try_from(process).unwrap() * MS;
        let locks = manager_on(&wire);
        for _ in 0..WAITERS {
            let (locks, sender) = (locks.clone(), sender.clone());
            workers.spawn(async move {
                loop {
                    let asked = Instant::now();
                    let guard = locks.acquire("k").wait_forever().await.unwrap();
                    sender.send((process, asked.elapsed())).unwrap();
                    sleep(MS).await;
                    drop(guard);
                }
            });
        }
    }
    sleep(30 * SECOND).await;
    workers.shutdown().await;
    drop(sender);
    let mut all = Vec::new();
    while let Some(grant) = grants.recv().await {
        all.push(grant);
    }
    let shares: Vec<_> = (0..PROCESSES)
        .map(|process| all.iter().filter(|it| it.0 == process).count() * 100 / all.len())
        .collect();
    assert!(
        shares.iter().all(|share| *share >= 20),
        "{shares:?} per cent"
    );
    // A turn lasts for 28 holders, and there are four processes.
    let longest = all.iter().map(|it| it.1).max().unwrap();
    assert!(longest <= 400 * MS, "waited {longest:?}");
}

#[tokio::test(start_paused = true)]
async fn renewal_of_100000_locks_loses_none() {
    let wire = Simulated::new(MS);
    let locks = LockManager::builder(wire.clone())
        .max_waiters(100_000)
        .build()
        .unwrap();
    let mut guards = Vec::new();
    for n in 0..100_000 {
        let acquire = locks.acquire(format!("key:{n}"));
        guards.push(tokio::spawn(async move { acquire.await.unwrap() }));
    }
    let mut held = Vec::new();
    for guard in guards {
        held.push(guard.await.unwrap());
    }
    sleep(100 * SECOND).await;
    assert!(held.iter().all(|guard| guard.is_held()));
    let renewals = wire.sent(Command::Renew);
    let batches = wire.renew_batches();
    assert!(renewals >= 900_000, "{renewals}");
    assert!(
        batches <= renewals / 90,
        "{batches} batches for {renewals} renewals"
    );
    // Serial batches would spend their response timeout waiting for each other.
    assert!((2..=16).contains(&wire.most_renewals_in_flight()));
    drop(held);
    sleep(10 * SECOND).await;
    assert!(locks.snapshot().is_idle());
}

#[tokio::test(start_paused = true)]
async fn tokens_of_10000_grants_strictly_increase() {
    let wire = Simulated::new(Duration::from_micros(100));
    let managers = [manager_on(&wire), manager_on(&wire.another_wire())];
    let (sender, mut tokens) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for n in 0..10 {
        let locks = managers[n % 2].clone();
        let sender = sender.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..1000 {
                let guard = locks.acquire("k").wait_forever().await.unwrap();
                sender.send(guard.fencing_token()).unwrap();
                tokio::task::yield_now().await;
                drop(guard);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    drop(sender);
    let mut grants = 0;
    let mut last = None;
    while let Some(token) = tokens.recv().await {
        assert!(Some(token) > last);
        last = Some(token);
        grants += 1;
    }
    assert_eq!(grants, 10_000);
    // A hand-off sends no command.
    let commands: HashMap<_, usize> = wire.log().iter().fold(HashMap::new(), |mut sum, entry| {
        *sum.entry(entry.0 as usize).or_default() += 1;
        sum
    });
    let sent: usize = commands.values().sum();
    assert!(sent < 1000, "{commands:?}");
}

#[tokio::test(start_paused = true)]
async fn queue_of_10000_waiters_is_served_in_order() {
    let locks = LockManager::builder(Memory::new())
        .max_waiters_per_key(10_000)
        .build()
        .unwrap();
    let guard = locks.acquire("k").await.unwrap();
    let served = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for n in 0..10_000 {
        let acquire = locks.acquire("k").wait_forever();
        let served = Arc::clone(&served);
        tasks.push(tokio::spawn(async move {
            let guard = acquire.await.unwrap();
            assert_eq!(served.fetch_add(1, Ordering::SeqCst), n);
            guard.fencing_token()
        }));
        tokio::task::yield_now().await;
    }
    assert_eq!(locks.snapshot().waiting, 10_000);
    let mut last = guard.fencing_token();
    drop(guard);
    for task in tasks {
        let token = task.await.unwrap();
        assert!(token > last);
        last = token;
    }
    sleep(MS).await;
    assert!(locks.snapshot().is_idle());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn increments_of_16_managers_lose_no_update() {
    let memory = Memory::new();
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..16 {
        let locks = manager_on(&memory);
        let counter = Arc::clone(&counter);
        tasks.push(tokio::spawn(async move {
            for _ in 0..100 {
                let guard = locks.acquire("k").wait_forever().await.unwrap();
                let read = counter.load(Ordering::SeqCst);
                sleep(Duration::from_micros(50)).await;
                counter.store(read + 1, Ordering::SeqCst);
                drop(guard);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(counter.load(Ordering::SeqCst), 1600);
}
