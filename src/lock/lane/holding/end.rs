//! The end of a hold.

use crate::lock::clock::{Moment, Span};
use crate::lock::lease::{Claim, Lease, valid_until};

/// The end of a hold. A lease that reaches the greatest of several ends reaches all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    At(Moment),
    /// Renewed by leases of this length until it is released.
    Renewed(Span),
}

impl End {
    /// Returns the end of each hold while all are alike. The lease then has the terms of the first one.
    pub(crate) fn of_uniform(lease: &Lease) -> Self {
        if lease.is_renewed() {
            Self::Renewed(lease.ttl())
        } else {
            Self::At(lease.valid_until())
        }
    }

    pub(crate) fn of(claim: &Claim, now: Moment) -> Self {
        let terms = claim.terms;
        if terms.renewed {
            Self::Renewed(terms.ttl)
        } else {
            Self::At(valid_until(now, terms.ttl))
        }
    }
}
