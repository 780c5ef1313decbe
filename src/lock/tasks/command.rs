//! The commands that acquire a lease, and what their replies mean.

use std::sync::Arc;

use crate::backend::{AcquireRequest, BackendErrorKind, Contended, LeaseId};
use crate::lock::engine::Engine;
use crate::lock::lane::{LastReply, Replied, unanswered};
use crate::lock::lease::{Lease, Terms};
use crate::{Error, LockKey};

/// The outcome of an attempt.
pub(crate) enum Outcome {
    Granted(Lease),
    /// Another process holds the key, or the backend is unavailable: another attempt may succeed.
    NotYet(LastReply),
    /// No attempt can succeed.
    Never(Error),
}

pub(crate) fn request(key: &LockKey, lease: LeaseId, terms: Terms) -> AcquireRequest {
    AcquireRequest::new(key.clone(), lease, terms.ttl.get())
        .with_mode(terms.mode)
        .with_limit(terms.limit)
}

/// Returns the outcome of an attempt. Releases the lease if its fate is unknown.
pub(crate) fn judge(engine: &Arc<Engine>, key: &LockKey, replied: Replied) -> Outcome {
    let (number, terms, now) = (replied.lease, replied.terms, replied.now);
    let resolve = || engine.release_until_confirmed(key, number, unanswered(terms.ttl));
    match replied.outcome {
        Ok(Contended::Granted { counter }) => {
            let per_counter = engine.capabilities.tokens_per_counter;
            let granted = Lease::new(number, counter, per_counter, terms, replied.sent_at);
            if now < granted.valid_until() {
                return Outcome::Granted(granted);
            }
            // The reply took longer than the lease: another owner may hold the key by now.
            resolve();
            Outcome::NotYet(LastReply::Nothing)
        }
        Ok(Contended::Waiting { ttl, .. }) => Outcome::NotYet(LastReply::Busy(now + ttl)),
        Err(error) => {
            if error.may_have_taken_effect() {
                resolve();
            }
            match error.kind() {
                BackendErrorKind::Unavailable => Outcome::NotYet(LastReply::Trouble(error)),
                BackendErrorKind::Misconfigured
                | BackendErrorKind::Conflict
                | BackendErrorKind::Unsupported => Outcome::Never(Error::of_backend(error)),
            }
        }
    }
}
