//! The line in which the acquire loops for permits of one key wait for their turn to contend.
//!
//! Each permit has a lane of its own. Without the line, a process with many waiters has as many places in the queue of
//! the backend, whose commands get slower with each place. The line is no part of the state of a lane: a loop that waits
//! in it for too long contends without a turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::LockKey;
use crate::key::KeyMap;
use crate::mutex::Mutex;

/// The number of loops that contend at a time. With one, each grant would follow the reply to the command before.
const AT_A_TIME: usize = 4;

/// The longest time for which a loop waits for its turn. It then learns from its own attempt whether the backend replies.
pub(in crate::lock) const LONGEST_IN_LINE: Duration = Duration::from_secs(1);

/// The turns of the loops of one runtime. Another runtime has its own, because this one may idle.
#[derive(Debug, Default)]
pub(in crate::lock) struct PermitLine(Mutex<KeyMap<Arc<Semaphore>>>);

impl PermitLine {
    /// Returns the turns for permits of `key`. The semaphore is never closed, and serves the loops in order.
    pub(in crate::lock) fn of(&self, key: &LockKey) -> Arc<Semaphore> {
        let mut keys = self.0.lock();
        if keys.len() == keys.capacity() {
            keys.retain(|_, turns| Arc::strong_count(turns) > 1);
            let live = keys.len();
            keys.reserve(live + 1);
        }
        let turns = keys.entry(key.stored().clone());
        Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(AT_A_TIME))))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use uuid::Uuid;

    use super::*;
    use crate::Owner;

    #[test]
    fn permits_of_one_key_share_turns() {
        let line = PermitLine::default();
        let of = |key: &str, owner| {
            let owner = NonZeroU64::new(owner).expect("not zero");
            line.of(&LockKey::new(key).permit_of(Owner::new(Uuid::nil(), owner)))
        };
        let turns = of("a", 1);
        assert!(Arc::ptr_eq(&turns, &of("a", 2)));
        assert!(!Arc::ptr_eq(&turns, &of("b", 1)));
        let turn = turns.try_acquire().expect("free");
        for number in 0..1_000 {
            drop(of(&number.to_string(), 1));
        }
        assert_eq!(of("a", 3).available_permits(), AT_A_TIME - 1);
        drop(turn);
        assert!(line.0.lock().len() < 100);
    }
}
