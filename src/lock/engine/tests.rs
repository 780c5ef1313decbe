//! The batches of one round.

use super::*;
use crate::backend::Memory;

#[test]
fn large_round_makes_small_batches() {
    const SIZE: usize = 100;
    let engine = Engine::new(Arc::new(Memory::new()), Options::default(), None);
    let keys: Vec<_> = (0..10_050).map(|n| LockKey::new(n.to_string())).collect();
    let batches = engine.in_batches(keys.clone(), SIZE, |key| key);
    let sizes: Vec<_> = batches.iter().map(Vec::len).collect();
    assert_eq!(sizes, [vec![SIZE; 100], vec![50]].concat());
    assert!(batches.iter().all(|batch| batch.capacity() < 2 * SIZE));
    assert_eq!(batches.concat(), keys);
}
