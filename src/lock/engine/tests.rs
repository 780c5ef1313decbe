//! The batches of one round, and the count of releases.

use super::*;
use crate::backend::{Erased, Memory};
use crate::lock::lane::Effects;
use crate::lock::tests::{Slow, key, number};

#[test]
fn large_round_makes_small_batches() {
    const SIZE: usize = 100;
    let engine = Engine::new(Erased::new(Memory::new()), Options::default(), None);
    let keys: Vec<_> = (0..10_050).map(|n| LockKey::new(n.to_string())).collect();
    let batches = engine.in_batches(keys.clone(), SIZE, |key| key);
    let sizes: Vec<_> = batches.iter().map(Vec::len).collect();
    assert_eq!(sizes, [vec![SIZE; 100], vec![50]].concat());
    assert!(batches.iter().all(|batch| batch.capacity() < 2 * SIZE));
    assert_eq!(batches.concat(), keys);
}

#[tokio::test]
async fn release_is_counted_before_its_task_starts() {
    let backend = Erased::new(Slow::default());
    let engine = Arc::new(Engine::new(backend, Options::default(), None));
    let mut effects = Effects::at(Moment::now());
    engine.lanes.with(&key(), &mut effects, |_, effects| {
        effects.leave(number(1));
    });
    assert_eq!(engine.unconfirmed(), 1);
    engine.carry_out(&key(), &mut effects);
    assert_eq!(engine.unconfirmed(), 1);
    engine.home.unconfirmed.finished().await;
    assert_eq!(engine.unconfirmed(), 0);
}
