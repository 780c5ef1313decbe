//! Tokens under clocks that differ.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;
use uuid::Uuid;

use super::{TTL, World};
use crate::LockKey;
use crate::backend::{AcquireRequest, Acquired, Backend as _, LeaseId, Release, Renewal, Renewed};

/// An endless sequence of numbers, equal for equal seeds.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from((self.0 >> 33) % end as u64).unwrap()
    }

    fn some(&mut self, count: usize, of: usize) -> Vec<usize> {
        let mut all: Vec<_> = (0..of).collect();
        (0..count)
            .map(|_| all.swap_remove(self.below(all.len())))
            .collect()
    }
}

/// Before each grant, another minority fails: some of its nodes are unreachable, others lose their data.
/// Nodes reply and processes acquire in random order. In between, attempts fail without a majority.
async fn tokens_increase(seed: u64, nodes: usize) {
    let random = &mut Random(seed);
    let world = World::new(nodes);
    let mut last = 0;
    for step in 0..12 {
        let minority = random.below(nodes / 2 + 1);
        let harmed = random.some(minority, nodes);
        let (lost, forgetful) = harmed.split_at(random.below(minority + 1));
        for node in forgetful {
            world.nodes[*node].restart_empty();
        }
        for node in &world.nodes {
            let latency = 100 * random.below(100) as u64;
            node.latency.store(latency, Ordering::SeqCst);
        }
        if random.below(3) == 0 {
            let cut_off = random.some(nodes / 2 + 1, nodes);
            world.lose(&cut_off, true);
            let failed = world.grant(random.below(3)).await;
            assert!(failed.is_err(), "{failed:?}");
            sleep(TTL).await;
            world.lose(&cut_off, false);
        }
        world.lose(lost, true);
        let counter = world.grant(random.below(3)).await.unwrap();
        assert!(
            counter > last,
            "seed {seed}, {nodes} nodes, grant {step}: {counter} after {last}; lost {lost:?}, forgetful {forgetful:?}"
        );
        last = counter;
        world.lose(lost, false);
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_over_failing_minorities_increase() {
    let random = RandomState::new().hash_one(0);
    for seed in (0..300).chain([random]) {
        for nodes in [3, 5, 7] {
            tokens_increase(seed, nodes).await;
        }
    }
}

/// The nodes that know the last token and the nodes that vote next share only one node, and the clock of the
/// next process is ten seconds slow. The largest counter of a majority alone would be wrong here.
#[tokio::test(start_paused = true)]
async fn token_of_grant_binds_every_later_majority() {
    let world = World::new(3);
    world.grant(0).await.unwrap();
    world.lose(&[2], true);
    let first = world.grant(2).await.unwrap();
    world.lose(&[2], false);
    for lost in [0, 1] {
        world.lose(&[lost], true);
        let next = world.grant(0).await.unwrap();
        assert!(next > first, "{next} after {first}");
        world.lose(&[lost], false);
    }
}

/// The first grant sets the counters of the nodes. Later grants find equal counters, whichever process
/// votes. A node that was unreachable does not matter.
#[tokio::test(start_paused = true)]
async fn grant_with_equal_counters_takes_one_round() {
    let world = World::new(5);
    world.grant(0).await.unwrap();
    for (process, lost) in [(0, 0), (2, 1), (1, 2), (0, 3), (2, 4), (0, 0)] {
        let before = world.votes();
        world.grant(process).await.unwrap();
        assert_eq!(world.votes() - before, 5, "process {process}");
        world.lose(&[lost], true);
        world.grant(2 - process).await.unwrap();
        world.lose(&[lost], false);
        world.grant(2).await.unwrap();
    }
}

/// A node that lost its counter receives it again, and counts again.
#[tokio::test(start_paused = true)]
async fn node_without_counter_adopts_it_at_next_grant() {
    let world = World::new(3);
    world.grant(1).await.unwrap();
    world.nodes[0].restart_empty();
    let before = world.votes();
    world.grant(1).await.unwrap();
    assert_eq!(world.votes() - before, 4, "one node receives the counter");
    let before = world.votes();
    world.grant(1).await.unwrap();
    assert_eq!(world.votes() - before, 3, "all nodes have it");
}

/// Two nodes of five lose their data while two others are unreachable. The holder is notified, and the other
/// nodes still hold the lease. The clock of the next process is ten seconds slow.
#[tokio::test(start_paused = true)]
async fn lost_lock_is_released_and_its_token_remembered() {
    let world = World::new(5);
    let key = LockKey::new("k");
    let id = |number| LeaseId::new(Uuid::new_v4(), number);
    let request = |lease| AcquireRequest::new(key.clone(), lease, TTL);
    let counter = |answer| match answer {
        Ok(Acquired::Granted { counter }) => counter,
        other => panic!("{other:?}"),
    };
    let reachable = |yes: bool| {
        for node in &world.nodes[3..] {
            node.lost.store(!yes, Ordering::SeqCst);
        }
    };
    let [late, _, early] = &world.processes;
    let first = id(1);
    counter(late.try_acquire(&request(first)).await);
    drop(late.release(&[Release::new(key.clone(), first)]).await);
    sleep(Duration::from_secs(1)).await;
    reachable(false);
    let second = id(2);
    let before = counter(early.try_acquire(&request(second)).await);
    reachable(true);
    for node in &world.nodes[..2] {
        node.restart_empty();
    }
    let renewal = Renewal::new(key.clone(), second, TTL);
    let renewed = early.renew(&[renewal]).await.remove(0);
    assert!(matches!(renewed, Ok(Renewed::NotHeld)), "{renewed:?}");
    sleep(Duration::from_secs(1)).await;
    let after = counter(late.try_acquire(&request(id(3))).await);
    assert!(after > before, "{before} then {after}");
}
