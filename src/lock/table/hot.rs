//! The keys whose acquires wait most often, in bounded memory.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

use crate::LockKey;

/// The number of keys that are counted at a time.
const KEYS: usize = 256;

/// One of the keys. The waits are at most too many by those of the key that it replaced.
#[derive(Debug, Clone)]
pub(crate) struct HotKey {
    pub(crate) key: LockKey,
    pub(crate) waits: u64,
    pub(crate) waited: Duration,
}

/// A Space-Saving sketch. A key with more than a 256th of all waits is always among its keys.
#[derive(Debug, Default)]
pub(crate) struct HotKeys {
    /// Whether a dashboard reads the counts.
    enabled: AtomicBool,
    keys: Mutex<Vec<HotKey>>,
    /// The waits that were not counted because another thread was counting.
    missed: AtomicU64,
}

impl HotKeys {
    /// Counts from now on.
    pub(crate) fn enable(&self) {
        self.enabled.store(true, Relaxed);
    }

    /// Counts an acquire that waited for this time. It does not wait for another thread.
    pub(crate) fn waited(&self, key: &LockKey, waited: Duration) {
        if !self.enabled.load(Relaxed) {
            return;
        }
        match self.keys.try_lock() {
            Ok(mut keys) => count(&mut keys, key, waited),
            Err(TryLockError::Poisoned(keys)) => count(&mut keys.into_inner(), key, waited),
            Err(TryLockError::WouldBlock) => {
                self.missed.fetch_add(1, Relaxed);
            }
        }
    }

    /// Returns the first keys, and the number of waits that were not counted.
    pub(crate) fn top(&self, limit: usize) -> (Vec<HotKey>, u64) {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let mut top = keys.clone();
        drop(keys);
        top.sort_unstable_by_key(|hot| Reverse((hot.waits, hot.waited)));
        top.truncate(limit);
        (top, self.missed.load(Relaxed))
    }

    /// Halves all counts, so that keys leave that are no longer hot.
    pub(crate) fn halve(&self) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.retain_mut(|hot| {
            hot.waits /= 2;
            hot.waited /= 2;
            hot.waits > 0
        });
        let missed = self.missed.load(Relaxed);
        self.missed.fetch_sub(missed - missed / 2, Relaxed);
    }
}

fn count(keys: &mut Vec<HotKey>, key: &LockKey, waited: Duration) {
    if let Some(hot) = keys.iter_mut().find(|hot| hot.key == *key) {
        hot.waits += 1;
        hot.waited += waited;
    } else if keys.len() < KEYS {
        keys.push(HotKey {
            key: key.clone(),
            waits: 1,
            waited,
        });
    } else if let Some(least) = keys.iter_mut().min_by_key(|hot| hot.waits) {
        *least = HotKey {
            key: key.clone(),
            waits: least.waits + 1,
            waited,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(hot: &HotKeys, key: &str) {
        hot.waited(&LockKey::new(key), Duration::ZERO);
    }

    #[test]
    fn busiest_key_stays_among_many() {
        let hot = HotKeys::default();
        hot.enable();
        for n in 0..10_000 {
            wait(&hot, &format!("rare:{n}"));
            if n % 50 == 0 {
                wait(&hot, "busy");
            }
        }
        let (top, missed) = hot.top(KEYS + 1);
        assert_eq!((top.len(), missed), (KEYS, 0));
        assert!(top.iter().any(|hot| hot.key == LockKey::new("busy")));
    }

    #[test]
    fn halved_key_leaves_at_last() {
        let hot = HotKeys::default();
        hot.enable();
        (0..3).for_each(|_| wait(&hot, "k"));
        hot.halve();
        assert_eq!(hot.top(1).0[0].waits, 1);
        hot.halve();
        assert!(hot.top(1).0.is_empty());
    }

    #[test]
    fn halved_counts_include_times_and_misses() {
        let hot = HotKeys::default();
        hot.keys.lock().unwrap().push(HotKey {
            key: LockKey::new("k"),
            waits: 4,
            waited: Duration::from_secs(6),
        });
        hot.missed.store(5, Relaxed);
        hot.halve();
        let (top, missed) = hot.top(1);
        assert_eq!((top[0].waits, missed), (2, 2));
        assert_eq!(top[0].waited, Duration::from_secs(3));
    }

    #[test]
    fn new_key_inherits_waits_of_replaced_one() {
        let hot = HotKeys::default();
        hot.enable();
        for n in 0..=KEYS {
            wait(&hot, &format!("key:{n}"));
        }
        let (top, _missed) = hot.top(1);
        assert_eq!(top[0].key, LockKey::new(format!("key:{KEYS}")));
        assert_eq!(top[0].waits, 2);
    }

    #[test]
    fn contended_count_is_missed() {
        let hot = HotKeys::default();
        hot.enable();
        let held = hot.keys.lock().unwrap();
        wait(&hot, "k");
        drop(held);
        assert_eq!(hot.top(1).1, 1);
    }

    #[test]
    fn nothing_is_counted_without_reader() {
        let hot = HotKeys::default();
        wait(&hot, "k");
        assert!(hot.top(1).0.is_empty());
    }
}
