//! Views of held locks that the tests of a handler create without a lock.

use std::num::NonZeroU64;
use std::time::Duration;

use uuid::Uuid;

use crate::backend::Mode;
use crate::lock::clock::{Clock, Span};
use crate::lock::lease::{Claim, Deadline, Grant, Grants, Held, Terms};
use crate::observe::{Name, RequestSpan, Via};
use crate::{FencingToken, LockKeys, Owner};

impl Held {
    /// Creates a view for a test of a handler: of these keys with this token, and held without end.
    ///
    /// # Panics
    ///
    /// Panics without a key.
    #[must_use]
    pub fn for_tests(keys: impl Into<LockKeys>, token: u32) -> Self {
        let now = Clock::System.now();
        let claim = Claim {
            ticket: 1,
            hold: 1,
            owner: Owner::new(Uuid::new_v4(), NonZeroU64::MIN),
            is_owner_fresh: true,
            terms: Terms {
                ttl: Span::FOREVER,
                renewed: false,
                mode: Mode::Exclusive,
                limit: None,
                max_hold: Span::FOREVER,
                keep: None,
            },
            deadline: Deadline::Endless,
            of_several: false,
            served_at_shutdown: false,
            clock: Clock::System,
            since: now,
            name: Name::NONE,
            span: RequestSpan::NONE,
        };
        let token = FencingToken::new(token.into(), 1, 0);
        let keys = keys.into();
        assert!(!keys.as_slice().is_empty(), "a view has at least one key");
        let grant = |key| Grant::new(key, &claim, Via::Backend, token, now + Span::FOREVER, now);
        let grants: Vec<_> = keys.as_slice().iter().cloned().map(grant).collect();
        Self {
            grants: Grants::Many(grants.into()),
            waited: Span::new(Duration::ZERO),
            via: Via::Backend,
        }
    }
}
