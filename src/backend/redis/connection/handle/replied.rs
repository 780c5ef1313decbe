//! What follows a reply to a command, or the end of its link.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{RedisError, Value};

use super::connection::Connection;
use crate::backend::BackendError;
use crate::backend::redis::command::{Cause, CommandError, check, is_demoted};
use crate::backend::redis::connection::{Link, Request};

impl Connection {
    /// Applies the end of a command on its link.
    pub(super) fn replied(
        &self,
        link: &Arc<Link>,
        request: &Request<'_>,
        reply: Result<Value, RedisError>,
    ) -> Result<Value, CommandError> {
        let reply = match reply {
            Ok(reply) => reply,
            Err(error) => {
                self.discard(link);
                return Err(CommandError::Died(BackendError::unknown(error)));
            }
        };
        self.answered(link);
        if self.connector.has_left(link) {
            // A former primary may still take itself for one. Its grants and renewals are void.
            self.discard(link);
            return Err(CommandError::Died(BackendError::unknown(Cause::NotPrimary)));
        }
        self.judged(link, request, reply)
    }

    /// Returns the outcome of a reply. If it shows that the link leads to a wrong server, the link takes no new command.
    pub(crate) fn judged(
        &self,
        link: &Arc<Link>,
        request: &Request<'_>,
        reply: Value,
    ) -> Result<Value, CommandError> {
        let is_demoted = is_demoted(&reply);
        let outcome = check(reply);
        let is_misled = match &outcome {
            Err(CommandError::Elsewhere { address, .. }) => self.connector.is_named_by(address),
            _ => is_demoted,
        };
        if is_misled {
            self.misled(link);
            // A call for several keys has a rejection for each.
            outcome?;
            return Err(CommandError::unavailable(Cause::NotPrimary));
        }
        if outcome.is_ok() && request.called.is_some() {
            link.visit.answered();
        }
        outcome
    }

    pub(super) fn answered(&self, link: &Link) {
        // The load keeps the usual case free of writes.
        if self.silent.load(Ordering::Relaxed) {
            self.silent.store(false, Ordering::Relaxed);
        }
        self.reached();
        self.mark_healthy(link);
    }

    pub(super) fn mark_healthy(&self, link: &Link) {
        if link.mark_healthy() {
            self.changed.notify_waiters();
        }
    }

    /// Drops a link that leads to a wrong server after the commands in flight, and the idle connections of the pool that
    /// may lead there.
    fn misled(&self, link: &Arc<Link>) {
        link.mark_misled();
        self.discard(link);
        if let Some(wrong_at) = link.visit.wrong_at() {
            self.connector.drop_idle(wrong_at);
        }
    }
}
