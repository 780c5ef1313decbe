//! The ways to acquire.

use std::time::Duration;

use tower_lock::manager::Acquire;

use crate::load::{millis, random};

pub(crate) struct How {
    pub(crate) wait: Option<Duration>,
    pub(crate) lease: Duration,
    pub(crate) renewed: bool,
    pub(crate) shared: bool,
    /// The limit of permits, or 0.
    pub(crate) permits: u32,
}

impl How {
    pub(crate) fn renewed(lease: Duration, wait: Option<Duration>) -> Self {
        Self {
            wait,
            lease,
            renewed: true,
            shared: false,
            permits: 0,
        }
    }

    pub(crate) fn leased(lease: Duration) -> Self {
        Self {
            wait: Some(Duration::from_secs(3)),
            lease,
            renewed: false,
            shared: false,
            permits: 0,
        }
    }

    pub(crate) fn at_random(lease: Duration) -> Self {
        match random(8) {
            0 => Self::renewed(lease, None),
            1 => Self::leased(lease),
            2 | 3 => Self::renewed(lease, Some(millis(250..900))),
            _ => Self::renewed(lease, Some(Duration::from_secs(3))),
        }
    }

    pub(crate) fn applied_to(&self, acquire: Acquire) -> Acquire {
        let acquire = match self.wait {
            Some(wait) => acquire.wait(wait),
            None => acquire.no_wait(),
        };
        let acquire = match self.shared {
            true => acquire.shared(),
            false => acquire,
        };
        let acquire = match self.permits {
            0 => acquire,
            limit => acquire.permits(limit),
        };
        if self.renewed {
            acquire
        } else {
            acquire.lease(self.lease)
        }
    }
}
