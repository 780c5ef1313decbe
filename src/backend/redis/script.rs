//! Typed script calls: what goes out, and what the answers mean.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::{Arg, Cmd, Value};

use super::fault::{Fault, check, no_end, refusal, unexpected};
use super::names::{Lease, Name, Names, millis};
use super::shard::Shard;
use crate::LockKey;
use crate::backend::{
    Acquired, BackendError, Fence, ForceReleased, Holder, LeaseId, Passed, Released, Renewal,
    Renewed,
};

/// How many keys one call renews or releases: Redis does nothing else during a script.
pub(super) const MAX_BATCH: usize = 100;
/// Room for `*n`, `$n` and line ends of an argument, and for a number.
const OVERHEAD: usize = 16;

pub(super) struct Script {
    source: &'static str,
    sha: String,
}

macro_rules! script {
    ($($file:literal),+) => {
        LazyLock::new(|| Script::new(concat!($(include_str!(concat!("scripts/", $file))),+)))
    };
}

static ACQUIRE: LazyLock<Script> = script!("fence.lua", "acquire.lua");
static VOTE: LazyLock<Script> = script!("vote.lua");
static RENEW: LazyLock<Script> = script!("renew.lua");
static RELEASE: LazyLock<Script> = script!("release.lua");
static PASS: LazyLock<Script> = script!("fence.lua", "pass.lua");
static INSPECT: LazyLock<Script> = script!("inspect.lua");
static FORCE_RELEASE: LazyLock<Script> = script!("force_release.lua");

impl Script {
    fn new(source: &'static str) -> Self {
        let sha = redis::Script::new(source).get_hash().to_owned();
        Self { source, sha }
    }

    /// The head of a call with `keys` keys; `size` bytes of arguments will follow.
    fn evalsha(&self, keys: usize, args: usize, size: usize) -> Cmd {
        let mut command = Cmd::with_capacity(3 + keys + args, size + 64);
        command.arg("EVALSHA").arg(&self.sha).arg(keys);
        command
    }

    fn eval(&self, keys: usize) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.source).arg(keys);
        command
    }

    fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(self.source);
        command
    }

    /// A call with the source in place of its hash.
    fn with_source(&self, call: &Cmd) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.source);
        for argument in call.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }

    /// Calls the script; loads it where the server does not know it, once. If it is lost again
    /// before the call behind the load, the call takes the source along.
    ///
    /// # Cancel safety
    ///
    /// As [`Shard::send`].
    async fn call(&self, shard: &Arc<Shard>, command: &Cmd) -> Result<Value, Fault> {
        match shard.send(command).await {
            Err(Fault::NoScript) => {
                shard.send(&self.load()).await?;
                match shard.send(command).await {
                    Err(Fault::NoScript) => shard.send(&self.with_source(command)).await,
                    outcome => outcome,
                }
            }
            outcome => outcome,
        }
    }
}

pub(super) async fn acquire(
    shard: &Arc<Shard>,
    names: &Names,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
) -> Result<Acquired, BackendError> {
    let (body, fence) = (names.body(key), names.fence());
    let size = body.len() + fence.len() + Lease::MAX_LEN + OVERHEAD;
    let mut command = ACQUIRE.evalsha(2, 2, size);
    command
        .arg(body)
        .arg(fence)
        .arg(Lease(lease))
        .arg(millis(ttl));
    let outcome = ACQUIRE.call(shard, &command).await;
    acquired(outcome, shard, names, key, lease, ttl)
}

/// As a node of a quorum.
pub(super) async fn vote(
    shard: &Arc<Shard>,
    names: &Names,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
    fence: Fence,
) -> Result<Acquired, BackendError> {
    let (counter, confirmed) = match fence {
        Fence::Propose(counter) => (counter, 0),
        Fence::Confirm(counter) => (counter, 1),
    };
    let (body, fence) = (names.body(key), names.quorum_fence());
    let size = body.len() + fence.len() + Lease::MAX_LEN + 3 * OVERHEAD;
    let mut command = VOTE.evalsha(2, 4, size);
    command.arg(body).arg(fence);
    command.arg(Lease(lease)).arg(millis(ttl));
    command.arg(counter).arg(confirmed);
    let outcome = VOTE.call(shard, &command).await;
    acquired(outcome, shard, names, key, lease, ttl)
}

fn acquired(
    outcome: Result<Value, Fault>,
    shard: &Arc<Shard>,
    names: &Names,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
) -> Result<Acquired, BackendError> {
    match outcome {
        Ok(Value::Int(-1)) => Err(no_end()),
        Ok(Value::Int(left)) => Ok(Acquired::busy(remaining(left))),
        Ok(answer) => counter(answer).map(Acquired::granted),
        Err(Fault::NoAnswer { link, waited }) => {
            // The acquire may still reach the server, or its answer may still be on the way. The
            // release goes behind it on the same connection, with its source: whether the server
            // knows the script is not known either.
            let undo = undo(names, key, lease);
            shard.settle(Arc::clone(&link), undo, ttl);
            Err(Fault::NoAnswer { link, waited }.into())
        }
        Err(fault) => Err(fault.into()),
    }
}

/// A release with the script's source in it, for a server that may not know the script.
pub(super) fn undo(names: &Names, key: &LockKey, lease: LeaseId) -> Cmd {
    let mut undo = RELEASE.eval(1);
    undo.arg(names.body(key))
        .arg(Lease(lease))
        .arg(names.channel(key));
    undo
}

/// The message of a release, by itself.
pub(super) fn publish(names: &Names, key: &LockKey) -> Cmd {
    let mut publish = redis::cmd("PUBLISH");
    publish.arg(names.channel(key)).arg("0");
    publish
}

pub(super) async fn renew(
    shard: &Arc<Shard>,
    names: &Names,
    renewals: &[&Renewal],
) -> Vec<Result<Renewed, BackendError>> {
    let bodies = renewals.iter().map(|renewal| names.body(&renewal.key));
    let mut command = batch(&RENEW, bodies, Lease::MAX_LEN + OVERHEAD);
    for renewal in renewals {
        command.arg(Lease(renewal.lease)).arg(millis(renewal.ttl));
    }
    let answer = answered(RENEW.call(shard, &command).await, shard);
    each(answer, renewals.len(), |held| match held {
        true => Renewed::Renewed,
        false => Renewed::NotHeld,
    })
}

pub(super) async fn release(
    shard: &Arc<Shard>,
    names: &Names,
    leases: &[&(LockKey, LeaseId)],
) -> Vec<Result<Released, BackendError>> {
    let bodies = leases.iter().map(|(key, _)| names.body(key));
    let longest = leases.iter().map(|(key, _)| names.channel(key).len()).max();
    let mut command = batch(&RELEASE, bodies, Lease::MAX_LEN + longest.unwrap_or(0));
    for (key, lease) in leases {
        command.arg(Lease(*lease)).arg(names.channel(key));
    }
    let answer = answered(RELEASE.call(shard, &command).await, shard);
    each(answer, leases.len(), |held| match held {
        true => Released::Released,
        false => Released::NotHeld,
    })
}

/// `own_subscribers` of the channel do not count; `None` releases in any case.
pub(super) async fn pass(
    shard: &Arc<Shard>,
    names: &Names,
    key: &LockKey,
    lease: LeaseId,
    ttl: Duration,
    own_subscribers: Option<u8>,
) -> Result<Passed, BackendError> {
    let own_subscribers = own_subscribers.map_or(-1, i64::from);
    let mut command = PASS.evalsha(2, 5, 512);
    command.arg(names.body(key)).arg(names.fence());
    command.arg(Lease(lease)).arg(millis(ttl));
    command.arg(names.channel(key)).arg(own_subscribers);
    command.arg(Passed::COUNTERS);
    match answered(PASS.call(shard, &command).await, shard)? {
        Value::Int(0) => Ok(Passed::NotHeld),
        Value::Int(1) => Ok(Passed::Released),
        answer => counter(answer).map(Passed::kept),
    }
}

pub(super) async fn inspect(
    shard: &Arc<Shard>,
    names: &Names,
    key: &LockKey,
) -> Result<Option<Holder>, BackendError> {
    let mut command = INSPECT.evalsha(1, 0, 128);
    command.arg(names.body(key));
    let fields = match answered(INSPECT.call(shard, &command).await, shard)? {
        Value::Nil => return Ok(None),
        Value::Array(fields) => fields,
        answer => return Err(unexpected(answer)),
    };
    let left = match fields.first() {
        Some(Value::Int(-1)) => return Err(no_end()),
        Some(Value::Int(left)) => remaining(*left),
        _ => return Err(unexpected(Value::Array(fields))),
    };
    let text = |index: usize| match fields.get(index) {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    let hold_count = text(2).parse().unwrap_or(1);
    Ok(Some(Holder::new(text(1), left, hold_count)))
}

pub(super) async fn force_release(
    shard: &Arc<Shard>,
    names: &Names,
    key: &LockKey,
) -> Result<ForceReleased, BackendError> {
    let mut command = FORCE_RELEASE.evalsha(1, 1, 256);
    command.arg(names.body(key)).arg(names.channel(key));
    match answered(FORCE_RELEASE.call(shard, &command).await, shard)? {
        Value::Int(1) => Ok(ForceReleased::Released),
        Value::Int(0) => Ok(ForceReleased::NotHeld),
        Value::Int(-1) => Err(no_end()),
        answer => Err(unexpected(answer)),
    }
}

/// A call over many keys; `extra` is how long the arguments of one of them get.
fn batch<'a>(
    script: &Script,
    bodies: impl ExactSizeIterator<Item = Name<'a>> + Clone,
    extra: usize,
) -> Cmd {
    let keys = bodies.len();
    let size: usize = bodies.clone().map(|body| body.len() + extra).sum();
    let mut command = script.evalsha(keys, 2 * keys, size);
    for body in bodies {
        command.arg(body);
    }
    command
}

/// For commands that need no undoing: after a missing answer, a sign of life is asked for.
fn answered(outcome: Result<Value, Fault>, shard: &Arc<Shard>) -> Result<Value, BackendError> {
    outcome.map_err(|fault| {
        if let Fault::NoAnswer { link, .. } = &fault {
            shard.probe(Arc::clone(link));
        }
        fault.into()
    })
}

/// Spreads the answer of a batch over its items.
fn each<T>(
    answer: Result<Value, BackendError>,
    items: usize,
    outcome: impl Fn(bool) -> T,
) -> Vec<Result<T, BackendError>> {
    let error = match answer {
        Ok(Value::Array(answers)) if answers.len() == items => {
            return answers
                .into_iter()
                .map(|answer| match answer {
                    Value::Int(held) => Ok(outcome(held == 1)),
                    Value::ServerError(error) => Err(refusal(error)),
                    answer => Err(unexpected(answer)),
                })
                .collect();
        }
        Ok(answer) => unexpected(answer),
        Err(error) => error,
    };
    (0..items).map(|_| Err(error.clone())).collect()
}

fn counter(answer: Value) -> Result<u64, BackendError> {
    let number = match &answer {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok().and_then(|n| n.parse().ok()),
        _ => None,
    };
    number.ok_or_else(|| unexpected(answer))
}

fn remaining(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Sends a command that is no script.
pub(super) async fn plain(shard: &Arc<Shard>, command: &Cmd) -> Result<Value, BackendError> {
    let answer = answered(shard.send(command).await, shard)?;
    check(answer).map_err(Into::into)
}
