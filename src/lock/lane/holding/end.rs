//! The end of a hold.

use crate::lock::clock::{Moment, Span};
use crate::lock::lease::claim::Claim;
use crate::lock::lease::{Lease, valid_until};

/// The end of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock::lane) enum End {
    /// Renewed by leases of this length until it is released.
    Renewed(Span),
    At(Moment),
}

impl End {
    /// Returns what a lease must last for so that both ends are reached.
    pub(in crate::lock::lane) fn max(self, other: Self) -> Self {
        match (self, other) {
            (Self::At(one), Self::At(other)) => Self::At(one.max(other)),
            (Self::Renewed(_), _) => self,
            (Self::At(_), Self::Renewed(_)) => other,
        }
    }

    /// Returns the end of each hold while all are alike. The lease then has the terms of the first one.
    pub(in crate::lock::lane) fn of_alike(lease: &Lease) -> Self {
        if lease.is_renewed() {
            Self::Renewed(lease.ttl())
        } else {
            Self::At(lease.valid_until())
        }
    }

    pub(in crate::lock::lane) fn of(claim: &Claim, now: Moment) -> Self {
        let terms = claim.terms;
        if terms.renewed {
            Self::Renewed(terms.ttl)
        } else {
            Self::At(valid_until(now, terms.ttl))
        }
    }
}
