//! The names of locks in Redis.

use std::fmt::{self, Write as _};
use std::time::Duration;

use redis::{RedisWrite, ToRedisArgs};
use uuid::fmt::Hyphenated;

use super::slot::{fence_of, slot_of};
use crate::backend::{LeaseId, Mode};
use crate::{ConfigError, LockKey};

/// The name of the fencing counter, and in a cluster [`fence_of`] per slot. No encoded key ends in a bare `%`,
/// so no lock has this name.
const FENCE: &str = "{fencing-token}%";
const MAX_PREFIX_LEN: usize = 256;
/// A hundred years. Redis may reject more as an overflow.
const MAX_TTL_MILLIS: u64 = 100 * 365 * 24 * 3_600 * 1_000;

/// The length of most names.
const SHORT: usize = 128;

/// The suffix of the channel that only processes of this crate subscribe to, so that the others can be counted.
pub(crate) const OURS: &str = "%w";

/// The names under one prefix.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    prefix: String,
    /// Fencing tokens come from the counters of Redisson's fenced locks, one per lock.
    pub(crate) of_redisson: bool,
}

impl Names {
    pub(crate) fn new(prefix: String, of_redisson: bool) -> Result<Self, ConfigError> {
        let problem = if prefix.len() > MAX_PREFIX_LEN {
            format!("longer than {MAX_PREFIX_LEN} bytes")
        } else if prefix.contains(['{', '}']) {
            // Braces would change the hash tag, and the slots of lock and channel would differ.
            "braces are not allowed".to_owned()
        } else if prefix.chars().any(char::is_control) {
            "control characters are not allowed".to_owned()
        } else {
            return Ok(Self {
                prefix,
                of_redisson,
            });
        };
        Err(ConfigError::new("prefix", problem))
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key of the fencing counter, of which there is one, or in a cluster one per slot.
    pub(crate) fn fence(&self, slot: Option<u16>) -> RedisName<'_> {
        RedisName([&self.prefix, slot.map_or(FENCE, fence_of), "", "", ""])
    }

    /// Returns the key of the quarantine after a loss of the counter. No encoded key contains a bare `%`.
    pub(crate) fn quarantine(&self, slot: Option<u16>) -> RedisName<'_> {
        let fence = slot.map_or(FENCE, fence_of);
        RedisName([&self.prefix, fence, "quarantine", "", ""])
    }

    /// Returns the slot of a lock, of its channel and of its fencing counter.
    pub(crate) fn slot(&self, key: &LockKey) -> u16 {
        // The prefix contains no braces, so a key with a tag has the slot of the tag.
        if key.as_str().contains('{') {
            slot_of(key.as_str())
        } else {
            slot_of(&self.body(key).to_text())
        }
    }

    /// Returns the key of the counter that the nodes of a quorum agree on.
    ///
    /// The self-test moves the other counter. This one must stay missing at a node that lost its data.
    pub(crate) fn quorum_fence(&self, slot: Option<u16>) -> RedisName<'_> {
        let fence = slot.map_or(FENCE, fence_of);
        RedisName([&self.prefix, fence, "quorum", "", ""])
    }

    /// Returns the key of the lock's hash.
    pub(crate) fn body<'a>(&'a self, key: &'a LockKey) -> RedisName<'a> {
        RedisName([&self.prefix, key.as_str(), "", "", ""])
    }

    /// Returns the channel of its releases, as Redisson spells it.
    pub(crate) fn channel<'a>(&'a self, key: &'a LockKey) -> RedisName<'a> {
        self.beside(key, ["redisson_lock__channel:", "redisson_lock__channel:{"])
    }

    /// Returns the key of the queue of its waiters. No encoded key ends in a bare `%queue` or `%tagged-queue`.
    ///
    /// The two ends differ, because the key `{<prefix>a}` would have the queue of the key `a` otherwise. A transfer to a
    /// waiter of one of them would then look like the grant of the other.
    pub(crate) fn queue<'a>(&'a self, key: &'a LockKey) -> RedisName<'a> {
        let (prefix, key) = (&self.prefix, key.as_str());
        if key.contains('{') {
            RedisName([prefix, key, "%tagged-queue", "", ""])
        } else {
            RedisName([prefix, "{", prefix, key, "}%queue"])
        }
    }

    /// Returns the counter of a fenced lock, as Redisson spells it.
    pub(crate) fn token<'a>(&'a self, key: &'a LockKey) -> RedisName<'a> {
        self.beside(key, ["redisson_lock_token:", "redisson_lock_token:{"])
    }

    /// Returns a name in the slot of a lock. It begins with `tagged` if the key has a hash tag, or else with
    /// `whole`, which makes the whole name the tag. The prefix contains no braces.
    fn beside<'a>(&'a self, key: &'a LockKey, [tagged, whole]: [&'static str; 2]) -> RedisName<'a> {
        if key.as_str().contains('{') {
            RedisName([tagged, &self.prefix, key.as_str(), "", ""])
        } else {
            RedisName([whole, &self.prefix, key.as_str(), "}", ""])
        }
    }
}

/// A name in pieces, which becomes one argument, mostly without an allocation.
#[derive(Clone, Copy)]
pub(crate) struct RedisName<'a>([&'a str; 5]);

impl RedisName<'_> {
    pub(crate) fn to_text(self) -> String {
        self.0.concat()
    }

    pub(crate) fn len(self) -> usize {
        self.0.iter().map(|piece| piece.len()).sum()
    }
}

impl ToRedisArgs for RedisName<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        // One argument in one write takes a third of the time of one write per piece.
        let mut text = [0; SHORT];
        let Some(name) = text.get_mut(..self.len()) else {
            return out.write_arg(self.to_text().as_bytes());
        };
        let mut rest = &mut *name;
        // Most names have few pieces.
        for piece in self.0.iter().filter(|piece| !piece.is_empty()) {
            let (next, after) = rest.split_at_mut(piece.len());
            next.copy_from_slice(piece.as_bytes());
            rest = after;
        }
        out.write_arg(name);
    }
}

/// The name of a lease in its mode as an argument: for one of several that can hold a lock, a letter before its id.
pub(crate) struct Named(pub(crate) Mode, pub(crate) LeaseId);

impl Named {
    /// A letter, a UUID, a colon and the digits of a `u64`.
    pub(crate) const MAX_LEN: usize = 1 + Hyphenated::LENGTH + 1 + 20;

    /// Returns the name of an exclusive lease, which is its id.
    pub(crate) fn exclusive(lease: LeaseId) -> Self {
        Self(Mode::Exclusive, lease)
    }

    /// Returns what the name begins with. An id begins with a hexadecimal digit.
    fn letter(&self) -> Option<u8> {
        match self.0 {
            Mode::Exclusive => None,
            Mode::Shared => Some(b's'),
            Mode::Permit => Some(b'p'),
        }
    }
}

impl ToRedisArgs for Named {
    /// Writes the text of `Display` in a third of the time.
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let letter = self.letter();
        let mut text = [letter.unwrap_or_default(); Self::MAX_LEN];
        let start = usize::from(letter.is_some());
        self.1.manager.hyphenated().encode_lower(&mut text[start..]);
        let colon = start + Hyphenated::LENGTH;
        text[colon] = b':';
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(self.1.number).as_bytes();
        let end = colon + 1 + digits.len();
        text[colon + 1..end].copy_from_slice(digits);
        out.write_arg(&text[..end]);
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.letter()
            .map_or(Ok(()), |letter| f.write_char(letter.into()))?;
        self.1.fmt(f)
    }
}

/// Returns a TTL in whole milliseconds: rounded up, since a lease must not end early, and at least 1, since 0
/// would delete the key.
pub(crate) fn millis(ttl: Duration) -> u64 {
    let millis = ttl.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).map_or(MAX_TTL_MILLIS, |millis| millis.clamp(1, MAX_TTL_MILLIS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(prefix: &str) -> Names {
        Names::new(prefix.to_owned(), false).unwrap()
    }

    #[test]
    fn channel_is_spelled_as_in_redisson() {
        let names = names("lock:");
        let channel = |key: &str| names.channel(&LockKey::new(key)).to_text();
        assert_eq!(channel("a"), "redisson_lock__channel:{lock:a}");
        assert_eq!(channel("{a}:b"), "redisson_lock__channel:lock:{a}:b");
    }

    #[test]
    fn queue_is_below_prefix_and_no_lock() {
        let names = names("lock:");
        let queue = |key: &str| names.queue(&LockKey::new(key)).to_text();
        assert_eq!(queue("a"), "lock:{lock:a}%queue");
        assert_eq!(queue("{a}:b"), "lock:{a}:b%tagged-queue");
        for key in ["{lock:a}%queue", "{a}:b%tagged-queue"] {
            assert_ne!(
                names.body(&LockKey::new(key)).to_text(),
                format!("lock:{key}")
            );
        }
    }

    #[test]
    fn keys_share_no_body_and_no_queue() {
        let keys = [
            "a",
            "{a}",
            "{lock:a}",
            "{{a}}",
            "a{",
            "{a",
            "a}",
            "{a}%queue",
            "{}a",
        ];
        for prefix in ["", "lock:"] {
            let names = names(prefix);
            let mut all = std::collections::BTreeSet::new();
            for key in keys.map(LockKey::new) {
                for name in [names.body(&key), names.queue(&key)] {
                    assert!(all.insert(name.to_text()), "{prefix}: {}", name.to_text());
                }
            }
        }
    }

    #[test]
    fn no_key_is_counter_or_quarantine() {
        let names = names("");
        let taken = [names.fence(None), names.quarantine(None)].map(RedisName::to_text);
        for key in [
            "{fencing-token}%",
            "{fencing-token}",
            "{fencing-token}%25",
            "{fencing-token}%quarantine",
            "{fencing-token}quarantine",
            "{fencing-token}%25quarantine",
        ] {
            assert!(!taken.contains(&names.body(&LockKey::new(key)).to_text()));
        }
        let quorum = names.quorum_fence(None).to_text();
        assert_ne!(names.body(&LockKey::new(&quorum)).to_text(), quorum);
    }

    #[test]
    fn names_of_lock_share_slot() {
        for prefix in ["lock:", ""] {
            let names = names(prefix);
            for key in ["a", "{a}:b", "order 7", "x{y}{z}", "a{"] {
                let key = LockKey::new(key);
                let slot = names.slot(&key);
                for name in [
                    names.body(&key),
                    names.channel(&key),
                    names.queue(&key),
                    names.fence(Some(slot)),
                    names.quorum_fence(Some(slot)),
                    names.quarantine(Some(slot)),
                ] {
                    assert_eq!(slot_of(&name.to_text()), slot, "{}", name.to_text());
                }
            }
        }
    }

    #[test]
    fn prefix_with_braces_or_controls_is_rejected() {
        for prefix in ["a{", "}b", "a\nb", "\u{7f}"] {
            assert_eq!(
                Names::new(prefix.to_owned(), false).unwrap_err().field(),
                "prefix"
            );
        }
        assert!(Names::new("x".repeat(257), false).is_err());
    }

    #[test]
    fn lease_argument_equals_display() {
        let manager = "4f2a6c1e-6d1f-4a6e-9a55-0a3c5a3d7f10".parse().unwrap();
        for number in [0, 12, u64::MAX] {
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Permit] {
                let named = Named(mode, LeaseId::new(manager, number));
                let written = named.to_redis_args();
                assert_eq!(written, [named.to_string().into_bytes()]);
            }
        }
    }

    #[test]
    fn ttl_is_rounded_up_to_at_least_one() {
        assert_eq!(millis(Duration::ZERO), 1);
        assert_eq!(millis(Duration::from_micros(1_001)), 2);
        assert_eq!(millis(Duration::from_millis(7)), 7);
        assert_eq!(millis(Duration::MAX), MAX_TTL_MILLIS);
    }
}
