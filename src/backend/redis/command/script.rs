//! Typed script calls: what goes out, and what the answers mean.

use std::sync::Arc;
use std::time::Duration;

use redis::{Arg, Cmd, Value};

use crate::LockKey;
use crate::backend::redis::command::{
    CommandError, Lease, Name, Names, Quarantine, millis, no_end, refusal, unexpected,
};
use crate::backend::redis::connection::{Connection, Outage};
use crate::backend::redis::topology::{Acquire, Route};
use crate::backend::{
    AcquireRequest, Acquired, BackendError, BackendErrorKind, Extended, Fence, ForceReleased,
    Holder, LeaseId, Release, Released, ReleasedOrKept, Renewal, Renewed,
};

/// How many keys one call renews or releases: Redis does nothing else during a script.
pub(crate) const MAX_BATCH: usize = 100;
/// What `acquire_all` answers in place of a counter.
const GRANTED: i64 = -3;
/// Room for `*n`, `$n` and line ends of an argument, and for a number.
const OVERHEAD: usize = 16;

pub(crate) struct Script {
    source: String,
    sha: String,
}

/// By which commands a release is told, and heard. Default: [`Auto`](Publish::Auto).
///
/// Who publishes by the one is not heard by those who subscribe by the other. Here they find out by
/// trying, up to a second later; in Java when the lease that they were told of has passed. Redisson,
/// since 3.22, uses the sharded commands where it is configured with cluster servers of version 7 or newer, and
/// the plain ones everywhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Publish {
    /// `Sharded` in a cluster of version 7 or newer, otherwise `Plain`.
    #[default]
    Auto,
    /// `PUBLISH` and `SUBSCRIBE`.
    Plain,
    /// `SPUBLISH` and `SSUBSCRIBE`. Needs version 7.
    Sharded,
    /// All four, for the time in which both kinds of clients are there. Needs version 7.
    Both,
}

/// The scripts, made for one way to publish.
pub(crate) struct Scripts {
    acquire: Script,
    acquire_all: Script,
    vote: Script,
    renew: Script,
    release: Script,
    release_or_keep: Script,
    inspect: Script,
    force_release: Script,
    pub(crate) quarantine: Option<Quarantine>,
    /// `PUBLISH`, `SPUBLISH`: what a release is told by.
    publish: &'static [&'static str],
}

impl Scripts {
    /// `of_redisson`: the counters are those of its fenced locks.
    pub(crate) fn new(publish: Publish, quarantine: Option<Duration>, of_redisson: bool) -> Self {
        let fence = if of_redisson {
            include_str!("lua/fence_of_redisson.lua")
        } else {
            include_str!("lua/fence.lua")
        };
        const NOTICE: &str = include_str!("lua/quarantine.lua");
        const ACQUIRE: &str = include_str!("lua/acquire.lua");
        const VOTE: &str = include_str!("lua/vote.lua");
        const GUARD: &str = include_str!("lua/guard.lua");
        let (acquire, vote): (&[_], &[_]) = match quarantine {
            None => (&[fence, ACQUIRE], &[VOTE]),
            Some(_) => (
                &[fence, NOTICE, GUARD, ACQUIRE],
                &[fence, NOTICE, GUARD, VOTE],
            ),
        };
        let prepare = || Script::new(&[fence, NOTICE, include_str!("lua/prepare.lua")]);
        let quarantine = quarantine.map(|period| Quarantine {
            period,
            prepare: prepare(),
        });
        let (tell, publish): (_, &[_]) = match publish {
            Publish::Auto | Publish::Plain => (include_str!("lua/publish.lua"), &["PUBLISH"]),
            Publish::Sharded => (include_str!("lua/publish_sharded.lua"), &["SPUBLISH"]),
            Publish::Both => (
                include_str!("lua/publish_both.lua"),
                &["PUBLISH", "SPUBLISH"],
            ),
        };
        Self {
            acquire: Script::new(acquire),
            acquire_all: Script::new(&[fence, include_str!("lua/acquire_all.lua")]),
            vote: Script::new(vote),
            quarantine,
            renew: Script::new(&[include_str!("lua/renew.lua")]),
            release: Script::new(&[tell, include_str!("lua/release.lua")]),
            release_or_keep: Script::new(&[fence, tell, include_str!("lua/release_or_keep.lua")]),
            inspect: Script::new(&[include_str!("lua/inspect.lua")]),
            force_release: Script::new(&[tell, include_str!("lua/force_release.lua")]),
            publish,
        }
    }
}

impl Script {
    fn new(pieces: &[&str]) -> Self {
        let source = pieces.concat();
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }

    /// The head of a call with `keys` keys; `size` bytes of arguments will follow.
    pub(crate) fn evalsha(&self, keys: usize, args: usize, size: usize) -> Cmd {
        let mut command = Cmd::with_capacity(3 + keys + args, size + 64);
        command.arg("EVALSHA").arg(&self.sha).arg(keys);
        command
    }

    /// A call with the source in place of its hash, for a server that may not know the script.
    fn eval(&self, call: &Cmd) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.source);
        for argument in call.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }

    /// Calls the script, with its source where the server does not know it: that also makes it
    /// known, at the very server that is to execute it.
    ///
    /// # Cancel safety
    ///
    /// As [`Route::send`].
    pub(crate) async fn call(&self, route: &Route, command: &Cmd) -> Result<Value, CommandError> {
        match route.send(command).await {
            Err(CommandError::NoScript { resent }) => {
                let outcome = route.send(&self.eval(command)).await;
                outcome.map_err(|fault| fault.after(resent))
            }
            outcome => outcome,
        }
    }
}

/// A key and where it is: what all calls for it need.
#[derive(Clone, Copy)]
pub(crate) struct KeyRoute<'a> {
    pub(crate) route: &'a Route,
    pub(crate) names: &'a Names,
    pub(crate) key: &'a LockKey,
}

impl<'a> KeyRoute<'a> {
    fn body(self) -> Name<'a> {
        self.names.body(self.key)
    }

    fn channel(self) -> Name<'a> {
        self.names.channel(self.key)
    }

    pub(crate) fn fence(self) -> Name<'a> {
        if self.names.of_redisson {
            self.names.token(self.key)
        } else {
            self.names.fence(self.route.slot())
        }
    }

    fn quarantine(self) -> Name<'a> {
        self.names.quarantine(self.route.slot())
    }
}

impl Scripts {
    pub(crate) async fn acquire(
        &self,
        at: KeyRoute<'_>,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Acquired, BackendError> {
        let quarantine = self.quarantine.as_ref();
        let period = quarantine.map(|quarantine| millis(quarantine.period));
        // Boxed, so that an acquire that shares a call does not carry along what one of its own takes, which
        // is kilobytes.
        Box::pin(self.acquire_outside(period, at, lease, ttl)).await
    }

    /// The same for a key of a trial, also in a quarantine.
    pub(crate) async fn try_out(
        &self,
        at: KeyRoute<'_>,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Acquired, BackendError> {
        let period = self.quarantine.as_ref().map(|_| 0);
        self.acquire_outside(period, at, lease, ttl).await
    }

    /// `period`: of the quarantine in ms, if there is to be one after a loss of data.
    async fn acquire_outside(
        &self,
        period: Option<u64>,
        at: KeyRoute<'_>,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Acquired, BackendError> {
        let (body, fence) = (at.body(), at.fence());
        let quarantine = period.map(|_| at.quarantine());
        let more = usize::from(period.is_some());
        let size = body.len() + 2 * fence.len() + Lease::MAX_LEN + 2 * OVERHEAD;
        let mut command = self.acquire.evalsha(2 + more, 2 + more, size);
        command.arg(body).arg(fence).arg(quarantine);
        command.arg(Lease(lease)).arg(millis(ttl)).arg(period);
        let undo = || self.undo(at, lease);
        let acquire = |command| {
            let undo = &undo;
            at.route.acquire(Acquire { command, undo, ttl })
        };
        let outcome = match acquire(&command).await {
            Err(CommandError::NoScript { resent }) => {
                let outcome = acquire(&self.acquire.eval(&command)).await;
                outcome.map_err(|fault| fault.after(resent))
            }
            outcome => outcome,
        };
        self.acquired(outcome, at, lease, ttl)
    }

    /// As a node of a quorum.
    pub(crate) async fn vote(
        &self,
        at: KeyRoute<'_>,
        lease: LeaseId,
        ttl: Duration,
        fence: Fence,
    ) -> Result<Acquired, BackendError> {
        let (counter, confirmed) = match fence {
            Fence::Propose(counter) => (counter, 0),
            Fence::Confirm(counter) => (counter, 1),
        };
        let period = self.quarantine.as_ref().map(|it| millis(it.period));
        // What a loss of data is seen by is not what the nodes agree on.
        let guard = period.map(|_| (at.fence(), at.quarantine()));
        let (body, agreed) = (at.body(), at.names.quorum_fence(at.route.slot()));
        let size = body.len() + 4 * agreed.len() + Lease::MAX_LEN + 4 * OVERHEAD;
        let more = usize::from(period.is_some());
        let mut command = self.vote.evalsha(2 + 2 * more, 4 + more, size);
        command.arg(body).arg(agreed);
        if let Some((fence, quarantine)) = guard {
            command.arg(fence).arg(quarantine);
        }
        command.arg(Lease(lease)).arg(millis(ttl));
        command.arg(counter).arg(confirmed).arg(period);
        let outcome = self.vote.call(at.route, &command).await;
        self.acquired(outcome, at, lease, ttl)
    }

    fn acquired(
        &self,
        outcome: Result<Value, CommandError>,
        at: KeyRoute<'_>,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Acquired, BackendError> {
        let outage = at.route.outage();
        match outcome {
            Ok(answer) => {
                let outcome = acquired(answer);
                note(outage, outcome.as_ref());
                outcome
            }
            Err(fault) => {
                match &fault {
                    // The acquire may still reach the server, or its answer may still be on the
                    // way. The release goes behind it on the same connection, with its source:
                    // whether the server knows the script is not known either.
                    CommandError::NoAnswer(silence) => silence.settle(self.undo(at, lease), ttl),
                    CommandError::Refused(error) => note(outage, Err(error)),
                    _ => {}
                }
                Err(fault.into())
            }
        }
    }

    /// A release with the script's source in it, for a server that may not know the script.
    pub(crate) fn undo(&self, at: KeyRoute<'_>, lease: LeaseId) -> Cmd {
        self.release
            .eval(&self.release(at.names, &[&Release::new(at.key.clone(), lease)]))
    }

    /// The messages of a release, by themselves.
    pub(crate) fn messages(&self, at: KeyRoute<'_>) -> impl Iterator<Item = Cmd> {
        self.publish.iter().map(move |name| {
            let mut publish = redis::cmd(name);
            publish.arg(at.channel()).arg("0");
            publish
        })
    }

    /// Several at once, of one slot, where there is no quarantine.
    pub(crate) async fn acquire_all(
        &self,
        route: &Route,
        names: &Names,
        acquires: &[AcquireRequest],
    ) -> Answers<Acquired> {
        let fence = names.fence(route.slot());
        let bodies = std::iter::once(fence).chain(acquires.iter().map(|it| names.body(&it.key)));
        let mut command = batch(&self.acquire_all, bodies, Lease::MAX_LEN + OVERHEAD);
        for acquire in acquires {
            command.arg(Lease(acquire.lease)).arg(millis(acquire.ttl));
        }
        let outcome = self.acquire_all.call(route, &command).await;
        // As for one.
        let outage = route.outage();
        match &outcome {
            Err(CommandError::NoAnswer(silence)) => {
                let leases: Vec<_> = acquires
                    .iter()
                    .map(|it| Release::new(it.key.clone(), it.lease))
                    .collect();
                let leases: Vec<_> = leases.iter().collect();
                let longest = acquires.iter().map(|it| it.ttl).max();
                let undo = self.release.eval(&self.release(names, &leases));
                silence.settle(undo, longest.unwrap_or_default());
            }
            Err(CommandError::Refused(error)) => note(outage, Err(error)),
            _ => {}
        }
        let outcomes = grants(outcome?, acquires.len())?;
        outcomes.iter().for_each(|it| note(outage, it.as_ref()));
        Ok(outcomes)
    }

    pub(crate) async fn renew_all(
        &self,
        route: &Route,
        names: &Names,
        renewals: &[&Renewal],
    ) -> Answers<Renewed> {
        let bodies = renewals.iter().map(|renewal| names.body(&renewal.key));
        let mut command = batch(&self.renew, bodies, Lease::MAX_LEN + OVERHEAD);
        for renewal in renewals {
            command.arg(Lease(renewal.lease)).arg(millis(renewal.ttl));
        }
        let answer = self.renew.call(route, &command).await;
        let outcome = |answer| held(answer, Renewed::Renewed, Renewed::NotHeld);
        Ok(each(list(answered(answer)?, renewals.len())?, outcome))
    }

    pub(crate) async fn release_all(
        &self,
        route: &Route,
        names: &Names,
        leases: &[&Release],
    ) -> Answers<Released> {
        let answer = self.release.call(route, &self.release(names, leases)).await;
        let outcome = |answer| held(answer, Released::Released, Released::NotHeld);
        Ok(each(list(answered(answer)?, leases.len())?, outcome))
    }

    fn release(&self, names: &Names, leases: &[&Release]) -> Cmd {
        let bodies = leases.iter().map(|it| names.body(&it.key));
        let channels = leases.iter().map(|it| names.channel(&it.key).len());
        let longest = channels.max();
        let extra = Lease::MAX_LEN + longest.unwrap_or(0);
        let mut command = batch(&self.release, bodies, extra);
        for release in leases {
            command
                .arg(Lease(release.lease))
                .arg(names.channel(&release.key));
        }
        command
    }

    /// `own_subscribers` of the channel do not count; with `None` there is always somebody else.
    /// `release`: to do so if there is.
    pub(crate) async fn release_or_keep(
        &self,
        at: KeyRoute<'_>,
        lease: LeaseId,
        ttl: Duration,
        own_subscribers: Option<u8>,
        release: bool,
    ) -> Result<Extended, BackendError> {
        let own_subscribers = own_subscribers.map_or(-1, i64::from);
        let mut command = self.release_or_keep.evalsha(2, 6, 512);
        command.arg(at.body()).arg(at.fence());
        command.arg(Lease(lease)).arg(millis(ttl));
        command.arg(at.channel()).arg(own_subscribers);
        command.arg(ReleasedOrKept::COUNTERS).arg(u8::from(release));
        match answered(self.release_or_keep.call(at.route, &command).await)? {
            Value::Int(0) => Ok(Extended::NotHeld),
            Value::Int(others @ 1..) => {
                Ok(Extended::wanted(u32::try_from(others).unwrap_or(u32::MAX)))
            }
            Value::Int(kept) => Ok(Extended::kept(kept.unsigned_abs())),
            answer => Err(unexpected(&answer)),
        }
    }

    pub(crate) async fn inspect(&self, at: KeyRoute<'_>) -> Result<Option<Holder>, BackendError> {
        let mut command = self.inspect.evalsha(1, 0, 128);
        command.arg(at.body());
        let fields = match answered(self.inspect.call(at.route, &command).await)? {
            Value::Nil => return Ok(None),
            Value::Array(fields) => fields,
            answer => return Err(unexpected(&answer)),
        };
        let left = match fields.first() {
            Some(Value::Int(-1)) => return Err(no_end()),
            Some(Value::Int(left)) => remaining(*left),
            _ => return Err(unexpected(&Value::Array(fields))),
        };
        let text = |index: usize| match fields.get(index) {
            Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        };
        let hold_count = text(2).parse().unwrap_or(1);
        Ok(Some(Holder::new(text(1), left, hold_count)))
    }

    pub(crate) async fn force_release(
        &self,
        at: KeyRoute<'_>,
    ) -> Result<ForceReleased, BackendError> {
        let mut command = self.force_release.evalsha(1, 1, 256);
        command.arg(at.body()).arg(at.channel());
        match answered(self.force_release.call(at.route, &command).await)? {
            Value::Int(1) => Ok(ForceReleased::Released),
            Value::Int(0) => Ok(ForceReleased::NotHeld),
            Value::Int(-1) => Err(no_end()),
            answer => Err(unexpected(&answer)),
        }
    }
}

/// Tells when a server begins to grant nothing, and when that is over. Only a grant shows it: with its
/// memory full, a server goes on with all the rest.
fn note(outage: &Outage, outcome: Result<&Acquired, &BackendError>) {
    match outcome {
        Ok(Acquired::Granted { .. }) => outage.end(),
        Err(error) if error.kind() != BackendErrorKind::Conflict => outage.begin(error),
        _ => {}
    }
}

/// One answer for each key of a call, or none for the call as a whole.
pub(crate) type Answers<T> = Result<Vec<Result<T, BackendError>>, CommandError>;

/// A call over many keys; `extra` is how long the arguments of one of them get.
fn batch<'a>(script: &Script, bodies: impl Iterator<Item = Name<'a>> + Clone, extra: usize) -> Cmd {
    let keys = bodies.clone().count();
    let size: usize = bodies.clone().map(|body| body.len() + extra).sum();
    let mut command = script.evalsha(keys, 2 * keys, size);
    for body in bodies {
        command.arg(body);
    }
    command
}

/// For commands that need no undoing: after a missing answer, a sign of life is asked for.
pub(crate) fn answered(outcome: Result<Value, CommandError>) -> Result<Value, CommandError> {
    if let Err(CommandError::NoAnswer(silence)) = &outcome {
        silence.probe();
    }
    outcome
}

fn list(answer: Value, items: usize) -> Result<Vec<Value>, CommandError> {
    match answer {
        Value::Array(answers) if answers.len() == items => Ok(answers),
        answer if items == 1 => Ok(vec![answer]),
        answer => Err(CommandError::Refused(unexpected(&answer))),
    }
}

/// Spreads the answer of a batch over its items.
fn each<T>(
    answers: impl IntoIterator<Item = Value>,
    mut outcome: impl FnMut(Value) -> Result<T, BackendError>,
) -> Vec<Result<T, BackendError>> {
    let outcome = |answer| match answer {
        Value::ServerError(error) => Err(refusal(error)),
        answer => outcome(answer),
    };
    answers.into_iter().map(outcome).collect()
}

/// The same for acquires: those that are granted have the counters from the first on, in their order.
fn grants(answer: Value, acquires: usize) -> Answers<Acquired> {
    let mut answers = list(answer, 1 + acquires)?.into_iter();
    let mut next = match answers.next() {
        None | Some(Value::Nil) => 0,
        Some(Value::Int(first @ 1..)) => first.unsigned_abs(),
        Some(first) => return Err(CommandError::Refused(unexpected(&first))),
    };
    let mut granted = || {
        let counter = next;
        next += 1;
        Ok(Acquired::granted(counter))
    };
    Ok(each(answers, |answer| match answer {
        Value::Int(GRANTED) => granted(),
        Value::Int(_) => acquired(answer),
        answer => Err(unexpected(&answer)),
    }))
}

fn held<T>(answer: Value, held: T, not_held: T) -> Result<T, BackendError> {
    match answer {
        Value::Int(1) => Ok(held),
        Value::Int(_) => Ok(not_held),
        answer => Err(unexpected(&answer)),
    }
}

/// The counter of a fresh grant.
pub(crate) fn granted(answer: &Value) -> Option<u64> {
    match answer {
        // Below all that PTTL says.
        Value::Int(granted @ ..-2) => Some(granted.abs_diff(-2)),
        _ => None,
    }
}

fn acquired(answer: Value) -> Result<Acquired, BackendError> {
    let counter = match &answer {
        Value::Int(-1) => return Err(no_end()),
        Value::Int(left @ -2..) => return Ok(Acquired::busy(remaining(*left))),
        // Granted again.
        Value::Array(again) => again.first().and_then(granted),
        // A vote.
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok().and_then(|n| n.parse().ok()),
        answer => granted(answer),
    };
    counter
        .map(Acquired::granted)
        .ok_or_else(|| unexpected(&answer))
}

pub(crate) fn remaining(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Sends a command that is no script.
pub(crate) async fn plain(
    connection: &Arc<Connection>,
    command: &Cmd,
) -> Result<Value, BackendError> {
    answered(connection.send(command, false).await).map_err(Into::into)
}
