//! Releases leases, leaves queues, and undoes acquires.

use redis::Cmd;

use crate::backend::redis::command::call::{Calls, KeyRoute, OVERHEAD, begin};
use crate::backend::redis::command::error::CommandError;
use crate::backend::redis::command::names::{Named, RedisName};
use crate::backend::redis::command::reply::{Outcomes, releases};
use crate::backend::redis::command::script::Script;
use crate::backend::redis::command::send::{CommandReply, call, call_with};
use crate::backend::redis::topology::Route;
use crate::backend::{LeaseId, Release, Released};

impl Calls {
    pub(crate) async fn leave_all(&self, route: &Route, leases: &[&Release]) -> Outcomes<Released> {
        if !self.are_queues_allowed() {
            return self.release_all(route, leases).await;
        }
        let past = route.node().unreleased.past();
        let outcomes = self.end_all(&self.scripts.leave, route, leases).await;
        note_releases(route, leases.len(), &outcomes, past);
        match (outcomes, leases) {
            (Err(CommandError::Scattered(_)), [release]) => {
                let at = self.at(route, &release.key);
                self.leave_queue_alone(at, release.lease).await?;
                self.release_all(route, leases).await
            }
            (Err(error), [_]) if error.is_denied() => self.release_all(route, leases).await,
            (outcomes, _) => outcomes,
        }
    }

    pub(crate) async fn release_all(
        &self,
        route: &Route,
        leases: &[&Release],
    ) -> Outcomes<Released> {
        let script = &self.scripts.release;
        let past = route.node().unreleased.past();
        let outcomes = match (self.end_all(script, route, leases).await, leases) {
            (Err(error), [_]) if error.excludes_queue() => {
                let command = self.ending(script, None, leases);
                // Boxed, so that the usual release does not contain it.
                let reply = Box::pin(call(script, route, &command)).await?;
                if error.is_denied() {
                    self.log_denied_queue();
                }
                ended(reply, leases)
            }
            (outcomes, _) => outcomes,
        };
        note_releases(route, leases.len(), &outcomes, past);
        outcomes
    }

    async fn end_all(
        &self,
        script: &Script,
        route: &Route,
        leases: &[&Release],
    ) -> Outcomes<Released> {
        let command = self.ending(script, Some(route), leases);
        let request = script.request(&command, leases.len());
        let reply = call_with(script, route, &request).await?;
        ended(reply, leases)
    }

    /// Returns a call of `release` or `leave`. Without the route of the queues, which may be at another node, it is a
    /// release of the bodies alone.
    fn ending(&self, script: &Script, queues: Option<&Route>, leases: &[&Release]) -> Cmd {
        let names = &self.names;
        let with_queues = queues.is_some() && self.are_queues_allowed();
        let keys = (1 + usize::from(with_queues)) * leases.len();
        let bodies = leases.iter().map(|it| names.body(&it.key));
        let len: usize = bodies.clone().map(RedisName::len).sum();
        // The body is a part of the other names.
        let size = 3 * len + leases.len() * (Named::MAX_LEN + 4 * OVERHEAD);
        let mut command = script.evalsha(keys, 2 * leases.len() + 1, size);
        for body in bodies {
            command.arg(body);
        }
        if with_queues {
            for release in leases {
                command.arg(names.queue(&release.key));
            }
        }
        for release in leases {
            command
                .arg(Named::exclusive(release.lease))
                .arg(names.channel(&release.key));
        }
        command.arg(queues.and_then(|route| self.blind(route)));
        command
    }

    /// Returns the call of `release` or `leave` that undoes an acquire, and a release without the queues for a
    /// server that rejects it. Both contain the source, because the server may not have the script.
    pub(crate) fn undo(&self, script: &Script, route: &Route, leases: &[&Release]) -> Vec<Cmd> {
        let undo = script.eval(&self.ending(script, Some(route), leases));
        vec![undo, self.undo_alone(leases)]
    }

    /// Returns the [`undo`](Self::undo) of one acquire.
    pub(crate) fn undo_one(&self, script: &Script, at: KeyRoute<'_>, lease: LeaseId) -> Vec<Cmd> {
        let release = Release::new(at.key.clone(), lease);
        self.undo(script, at.route, &[&release])
    }

    /// Returns the release that undoes acquires of bodies alone.
    pub(crate) fn undo_alone(&self, leases: &[&Release]) -> Cmd {
        let script = &self.scripts.release;
        script.eval(&self.ending(script, None, leases))
    }
}

/// Logs the time in which a server rejects releases, which are retried until the leases have expired.
///
/// `past` is the number of past outages before the command. Its rejection begins no outage if one has ended since: there may be no further
/// release whose success would end it.
fn note_releases(route: &Route, leases: usize, outcomes: &Outcomes<Released>, past: usize) {
    let outage = &route.node().unreleased;
    let begin = |error| {
        if outage.past() == past {
            begin(outage, error);
        }
    };
    match outcomes {
        Ok(outcomes) => {
            for outcome in outcomes {
                match outcome {
                    Err(error) => begin(error),
                    Ok(_) => outage.end_for_any(),
                }
            }
        }
        // Without the queue, or with one key, the command may succeed.
        Err(error) if error.excludes_queue() => {}
        Err(error) if error.may_spare_keys() && leases > 1 => {}
        Err(CommandError::Refused(error)) => begin(error),
        Err(_) => {}
    }
}

fn ended(reply: CommandReply, leases: &[&Release]) -> Outcomes<Released> {
    let absent = match reply.resent {
        true => Released::Released,
        false => Released::NotHeld,
    };
    releases(reply.value, leases.len(), absent)
}
