//! The keys whose locks have ended here recently: the lease of a key that comes back is kept for its next acquire.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::lock::clock::{Moment, Span};

/// The entries of keys with similar hashes. A new key takes the oldest one.
const WAYS: usize = 4;

/// The record takes 128 KiB. With 800,000 new keys a second, a key keeps its entry for 20 ms.
const SETS: usize = 4096;

/// The last ends of locks, by the hashes of their keys. Two keys with equal parts of their hashes count as one, which costs
/// a lease that is kept in vain.
#[derive(Debug, Default)]
pub(crate) struct Recent(OnceLock<Record>);

#[derive(Debug)]
struct Record {
    /// The process that keeps the leases: a fork has its copy of the lanes.
    process: AtomicU32,
    /// A part of the hash, and the moment of the last end.
    sets: Box<[[AtomicU64; WAYS]]>,
}

impl Recent {
    /// Records the end of a lock on a key with this hash. Returns `true` if its acquire began at most `within` after the
    /// last end.
    pub(crate) fn comes_back(&self, hash: u64, began: Moment, within: Span, now: Moment) -> bool {
        let record = self.0.get_or_init(Record::new);
        let set = &record.sets[(hash >> 8) as usize % SETS];
        let (part, at) = ((hash >> 32) as u32, now.ticks());
        let age = |entry: &&AtomicU64| at.wrapping_sub(entry.load(Relaxed) as u32);
        let own = set
            .iter()
            .find(|entry| (entry.load(Relaxed) >> 32) as u32 == part);
        let limit = at.wrapping_sub((began - within).ticks());
        let comes_back = own.is_some_and(|entry| age(&entry) <= limit);
        let oldest = || set.iter().max_by_key(age).unwrap_or(&set[0]);
        let entry = u64::from(part) << 32 | u64::from(at);
        own.unwrap_or_else(oldest).store(entry, Relaxed);
        comes_back
    }

    /// Returns `true` if leases may be kept, and this process has them.
    pub(crate) fn is_of_this_process(&self) -> bool {
        let record = self.0.get();
        record.is_some_and(|record| record.process.load(Relaxed) == std::process::id())
    }
}

#[cfg(test)]
impl Recent {
    /// As in a fork of this process, which has another number.
    pub(crate) fn pretend_fork(&self) {
        let record = self.0.get().expect("a lock has ended");
        record.process.fetch_add(1, Relaxed);
    }
}

impl Record {
    fn new() -> Self {
        let sets = (0..SETS).map(|_| std::array::from_fn(|_| AtomicU64::default()));
        Self {
            process: std::process::id().into(),
            sets: sets.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::tests::{MS, SECOND};

    const WITHIN: Span = Span::new(MS.saturating_mul(10));

    /// Records a lock without a wait or a hold.
    fn ends(recent: &Recent, hash: u64, at: Moment) -> bool {
        recent.comes_back(hash, at, WITHIN, at)
    }

    #[test]
    fn new_key_does_not_come_back() {
        let (recent, now) = (Recent::default(), Moment::now());
        assert!(!ends(&recent, 1 << 40, now));
        assert!(!ends(&recent, 2 << 40, now));
    }

    #[test]
    fn key_comes_back_within_time_after_its_end() {
        let (recent, now) = (Recent::default(), Moment::now());
        assert!(!ends(&recent, 1 << 40, now));
        assert!(ends(&recent, 1 << 40, now + 10 * MS));
        assert!(!ends(&recent, 1 << 40, now + 21 * MS));
    }

    #[test]
    fn hold_does_not_count() {
        let (recent, now) = (Recent::default(), Moment::now());
        assert!(!ends(&recent, 1 << 40, now));
        assert!(recent.comes_back(1 << 40, now + 9 * MS, WITHIN, now + SECOND));
        // It waited while another one had the lock.
        assert!(recent.comes_back(1 << 40, now, WITHIN, now + 2 * SECOND));
    }

    #[test]
    fn new_key_replaces_oldest() {
        let (recent, now) = (Recent::default(), Moment::now());
        for key in 1..=5 {
            assert!(!ends(
                &recent,
                key << 40,
                now + MS * u32::try_from(key).expect("small")
            ));
        }
        let at = now + 6 * MS;
        assert!((2..=5).all(|key| ends(&recent, key << 40, at)));
        assert!(!ends(&recent, 1 << 40, at));
    }
}
