//! The downgrade of a guard from exclusive to shared.
//!
//! A task at home sends the command, one task for each key, and the lane applies the reply
//! (`lane/holding/downgrading.rs`).
//!
//! | the future is dropped | effect |
//! |---|---|
//! | before its first poll | none |
//! | later | the tasks complete the downgrade; a further call awaits the same result |
//!
//! | the home ends | effect |
//! |---|---|
//! | before the command is sent | the lock stays exclusive |
//! | later | the result is unknown: the guard is lost, and the lease expires |
//!
//! A reply that comes after the end of the lease changes nothing: the guard is lost, and the lease is released.

use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::backend::{BackendError, Mode, Renewal};
use crate::lock::clock::Moment;
use crate::lock::engine::Engine;
use crate::lock::lane::{Report, Wakeup};
use crate::lock::lease::{Grant, HoldId, Lost};
use crate::{Error, ErrorKind};

/// The downgrade of a guard that has begun.
#[derive(Debug)]
pub(crate) struct Downgrade {
    /// The results of the tasks that are still to come.
    results: Vec<oneshot::Receiver<Result<(), Error>>>,
    outcome: Result<(), Error>,
}

impl Engine {
    /// Begins to make the locks of a guard shared. Either all of its keys begin, or none.
    ///
    /// # Errors
    ///
    /// Returns [`Lost`](ErrorKind::Lost), [`InvalidOption`](ErrorKind::InvalidOption),
    /// [`Unsupported`](ErrorKind::Unsupported), or [`Unavailable`](ErrorKind::Unavailable) if the home has ended.
    pub(crate) fn downgrade(
        self: &Arc<Self>,
        grants: &[Arc<Grant>],
        hold: HoldId,
    ) -> Result<Downgrade, Error> {
        if !self.capabilities.include(Mode::Shared) {
            return Err(Error::new(ErrorKind::Unsupported));
        }
        self.require_home()?;
        let now = self.now();
        let mut tasks = Vec::new();
        for grant in grants {
            let wakeup = Wakeup::default();
            // After an error, the tasks of the earlier keys are dropped, which ends their reservations.
            self.event(grant.key(), now, |lane, _| {
                lane.reserve_downgrade(grant, hold, Arc::clone(&wakeup), now)
            })?;
            // Without its reservation, no other downgrade makes it shared.
            if grant.mode() != Mode::Shared {
                tasks.push(Task {
                    engine: Arc::clone(self),
                    grant: Arc::clone(grant),
                    wakeup,
                    sent: None,
                    is_over: false,
                });
            }
        }
        let start = |task: Task| {
            let (report, result) = oneshot::channel();
            self.home.spawn(run(task, report));
            result
        };
        Ok(Downgrade {
            results: tasks.into_iter().map(start).collect(),
            outcome: Ok(()),
        })
    }
}

impl Downgrade {
    /// Completes with the result. `lost` is the loss of the guard.
    ///
    /// # Cancel safety
    ///
    /// A further call awaits the results that are still to come.
    pub(crate) async fn finish(&mut self, lost: Lost) -> Result<(), Error> {
        let mut lost: Pin<&mut Lost> = pin!(lost);
        while let Some(result) = self.results.last_mut() {
            let outcome = tokio::select! {
                biased;
                outcome = result => outcome.unwrap_or_else(|_ended| {
                    Err(Error::new(match lost.has_come() {
                        true => ErrorKind::Lost,
                        false => ErrorKind::Unavailable,
                    }))
                }),
                // The task may not run.
                () = &mut lost => Err(Error::new(ErrorKind::Lost)),
            };
            self.results.pop();
            let is_worse = outcome.as_ref().is_err_and(Error::is_lost);
            if is_worse || self.outcome.is_ok() {
                self.outcome = outcome;
            }
        }
        std::mem::replace(&mut self.outcome, Ok(()))
    }
}

/// The downgrade of one key. If dropped before its end, it has ended without a reply.
struct Task {
    engine: Arc<Engine>,
    grant: Arc<Grant>,
    wakeup: Wakeup,
    /// The command and when it was sent.
    sent: Option<(Renewal, Moment)>,
    is_over: bool,
}

async fn run(mut task: Task, report: Report) {
    let outcome = task.run().await;
    task.is_over = true;
    let (engine, key) = (&task.engine, task.grant.key());
    engine.event_now(key, |_, effects| effects.report(Some(report), outcome));
}

impl Task {
    async fn run(&mut self) -> Result<(), Error> {
        let Self { engine, grant, .. } = self;
        let key = grant.key();
        let (lease, ttl, sent_at) = loop {
            let now = engine.now();
            match engine.event(key, now, |lane, _| lane.send_downgrade(grant, now))? {
                Some((lease, ttl)) => break (lease, ttl, now),
                None => self.wakeup.notified().await,
            }
        };
        let downgrade = Renewal::new(key.clone(), engine.lease_id(lease), ttl);
        self.sent = Some((downgrade.clone(), sent_at));
        let outcome = Arc::clone(&engine.backend)
            .downgrade(downgrade.clone())
            .await;
        engine.event_now(key, |lane, effects| {
            lane.downgraded(grant, &downgrade, sent_at, outcome, effects)
        })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let Self { engine, grant, .. } = self;
        let key = grant.key();
        let Some((downgrade, sent_at)) = self.sent.take() else {
            return engine.event_now(key, |lane, _| lane.cancel_downgrade(grant));
        };
        engine.home.task_was_dropped();
        let unknown = Err(BackendError::unknown(
            "the runtime of the downgrade has ended",
        ));
        let outcome = engine.event_now(key, |lane, effects| {
            lane.downgraded(grant, &downgrade, sent_at, unknown, effects)
        });
        // The caller observes the loss of its guard.
        drop(outcome);
    }
}
