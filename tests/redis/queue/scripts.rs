//! The scripts of the queue, as the backend composes them.

use std::collections::BTreeSet;

use redis::{Cmd, Connection, ConnectionLike as _, RedisResult, Value};

use super::model::{Counted, Reply, limit_of};

pub(crate) const BODY: &str = "lock:a";
pub(crate) const QUEUE: &str = "lock:{lock:a}%queue";
pub(crate) const FENCE: &str = "lock:{fencing-token}%";
const QUARANTINE: &str = "lock:{fencing-token}%quarantine";
/// The number of counters that a kept lease takes.
pub(crate) const COUNTERS: u64 = 8;
/// The length of a quarantine in ms.
const PERIOD: i64 = 1_000;
pub(crate) const CHANNEL: &str = "redisson_lock__channel:{lock:a}";

/// The names of a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names {
    pub(crate) body: &'static str,
    pub(crate) queue: &'static str,
    channel: &'static str,
}

pub(crate) const A: Names = Names {
    body: BODY,
    queue: QUEUE,
    channel: CHANNEL,
};

pub(crate) const B: Names = Names {
    body: "lock:b",
    queue: "lock:{lock:b}%queue",
    channel: "redisson_lock__channel:{lock:b}",
};

macro_rules! piece {
    ($name:tt) => {
        include_str!(concat!(
            "../../../src/backend/redis/command/lua/",
            $name,
            ".lua"
        ))
    };
}

/// What the settings of a backend change in its scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavor {
    Plain,
    /// With a check for a quarantine, and without counters in the messages of transfers.
    Guarded,
    /// With sharded messages.
    Sharded,
    /// With messages of both kinds.
    Both,
    /// At a server whose counts of subscribers are hundreds of millions too large.
    Implausible,
}

/// All scripts.
pub(crate) const SCRIPTS: [&str; 12] = [
    "acquire",
    "acquire_all",
    "contend",
    "renew",
    "release",
    "leave",
    "release_or_keep",
    "downgrade",
    "force_release",
    "inspect",
    "share",
    "share_renew",
];

/// Returns the source of a script.
pub(crate) fn source(script: &str, flavor: Flavor) -> String {
    let report = match flavor {
        Flavor::Plain | Flavor::Guarded | Flavor::Implausible => piece!("publish"),
        Flavor::Sharded => piece!("publish_sharded"),
        Flavor::Both => piece!("publish_both"),
    };
    let counted = |piece: &str, real, wrong| match flavor {
        Flavor::Implausible => {
            assert!(piece.contains(real));
            piece.replace(real, wrong)
        }
        _ => piece.to_owned(),
    };
    let real = "counts[2] + also[2], counts[4] + also[4]";
    let wrong = "counts[2] + 4e8, counts[4] + 3e8";
    let listeners = &counted(piece!("listeners"), real, wrong);
    let alone = &counted(
        piece!("keep_alone"),
        "heard[2 * i] ~=",
        "heard[2 * i] + 4e8 ~=",
    );
    let guarded = flavor == Flavor::Guarded;
    let guard = [piece!("started"), piece!("quarantine"), piece!("guard")].concat();
    let guard = if guarded { &guard } else { "" };
    let fence = piece!("fence");
    let queue = concat!(piece!("hold_free"), piece!("queue"));
    let queue = [listeners, queue].concat();
    let pieces: &[&str] = match script {
        "acquire" => &[fence, guard, piece!("acquire")],
        "acquire_all" => &[fence, piece!("acquire_all")],
        "contend" => &[
            fence,
            guard,
            report,
            &queue,
            piece!("wanted"),
            piece!("contend"),
        ],
        "renew" => &[piece!("renew")],
        "share" => &[
            fence,
            guard,
            piece!("hold_free"),
            piece!("share"),
            report,
            listeners,
            piece!("queue"),
            piece!("wanted"),
            piece!("share_later"),
        ],
        "share_renew" => &[report, &queue, piece!("wanted"), piece!("share_renew")],
        "release" => &[
            report,
            piece!("release_one"),
            piece!("ended"),
            piece!("release"),
            &queue,
            piece!("release_wanted"),
        ],
        "leave" => &[report, &queue, piece!("ended"), piece!("leave")],
        "release_or_keep" => &[fence, report, alone, &queue, piece!("release_or_keep")],
        "downgrade" => &[fence, report, &queue, piece!("downgrade")],
        "force_release" => &[report, &queue, piece!("ended"), piece!("force_release")],
        "inspect" => &[report, &queue, piece!("inspect")],
        other => panic!("no script {other}"),
    };
    pieces.concat()
}

/// A command of a process.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    Acquire {
        lease: String,
        ttl: i64,
    },
    /// Under the name of a shared lease or a permit.
    Share {
        lease: String,
        ttl: i64,
    },
    /// Under a lease id, or the name of a shared lease or a permit.
    Contend {
        lease: String,
        ttl: i64,
        listens: bool,
    },
    Release(String),
    Leave(String),
    Force {
        holder: String,
        /// Other leases that share the lock are spared.
        spares: bool,
    },
    Pass {
        lease: String,
        ttl: i64,
        own: i64,
        next: Option<(String, bool)>,
    },
    /// Under a lease id, which may be that of a shared lease.
    Downgrade {
        lease: String,
        ttl: i64,
        /// The queue is at another node.
        alone: bool,
    },
    Inspect,
    Renew {
        lease: String,
        ttl: i64,
    },
    RenewShared {
        lease: String,
        ttl: i64,
        /// The queue is at another node.
        alone: bool,
    },
    AcquireBoth {
        leases: [String; 2],
        ttl: i64,
    },
    /// Under the names of shared leases or permits.
    ShareBoth {
        leases: [String; 2],
        ttl: i64,
    },
    RenewBoth {
        leases: [String; 2],
        ttl: i64,
    },
    RenewSharedBoth {
        leases: [String; 2],
        ttl: i64,
    },
    ReleaseBoth([String; 2]),
    LeaveBoth([String; 2]),
    /// Two calls `Pass` in one.
    PassBoth([Box<Call>; 2]),
    /// A call for the second lock.
    Second(Box<Call>),
}

fn kind(listens: bool) -> &'static str {
    if listens { "!" } else { "?" }
}

impl Call {
    /// Runs the call as a backend of the usual settings.
    pub(crate) fn run(&self, connection: &mut Connection, counted: Counted) -> (Reply, i64) {
        self.run_as(Flavor::Plain, connection, counted)
    }

    /// Returns the reply, and the counter of a grant.
    pub(crate) fn run_as(
        &self,
        flavor: Flavor,
        connection: &mut Connection,
        counted: Counted,
    ) -> (Reply, i64) {
        self.run_on(&A, flavor, connection, counted)
    }

    fn run_on(
        &self,
        names: &Names,
        flavor: Flavor,
        connection: &mut Connection,
        counted: Counted,
    ) -> (Reply, i64) {
        let Names {
            body,
            queue,
            channel,
        } = names;
        let blind = match counted {
            Counted::All => None,
            Counted::Ours => Some(1),
            Counted::Nothing => Some(2),
        };
        let always = blind.unwrap_or(0);
        let mut eval = redis::cmd("EVAL");
        let script = |name: &str| source(name, flavor);
        let guarded = flavor == Flavor::Guarded;
        let (quarantine, period) = (guarded.then_some(QUARANTINE), guarded.then_some(PERIOD));
        let more = usize::from(guarded);
        match self {
            Self::Acquire { lease, ttl } => {
                eval.arg(script("acquire"))
                    .arg(2 + more)
                    .arg(body)
                    .arg(FENCE);
                eval.arg(quarantine).arg(lease).arg(ttl).arg(period);
            }
            Self::Share { lease, ttl } => {
                eval.arg(script("share")).arg(3 + more).arg(body).arg(queue);
                eval.arg(FENCE).arg(quarantine).arg(always);
                eval.arg(lease).arg(ttl).arg(channel);
                eval.arg(limit_of(lease).unwrap_or(0)).arg(period);
            }
            Self::ShareBoth { leases, ttl } => {
                eval.arg(script("share")).arg(5 + more);
                eval.arg(A.body).arg(B.body).arg(A.queue).arg(B.queue);
                eval.arg(FENCE).arg(quarantine).arg(always);
                for (lease, names) in leases.iter().zip([A, B]) {
                    eval.arg(lease).arg(ttl).arg(names.channel);
                    eval.arg(limit_of(lease).unwrap_or(0));
                }
                eval.arg(period);
            }
            Self::RenewShared { lease, ttl, alone } => {
                let queue = Some(queue).filter(|_| !alone);
                eval.arg(script("share_renew")).arg(2 - i64::from(*alone));
                eval.arg(body).arg(queue).arg(always);
                eval.arg(lease).arg(ttl).arg(channel);
            }
            Self::RenewSharedBoth { leases, ttl } => {
                eval.arg(script("share_renew")).arg(4);
                eval.arg(A.body).arg(B.body).arg(A.queue).arg(B.queue);
                eval.arg(always);
                for (lease, names) in leases.iter().zip([A, B]) {
                    eval.arg(lease).arg(ttl).arg(names.channel);
                }
            }
            Self::Contend {
                lease,
                ttl,
                listens,
            } => {
                eval.arg(script("contend"))
                    .arg(3 + more)
                    .arg(body)
                    .arg(queue);
                eval.arg(FENCE).arg(quarantine);
                eval.arg(lease).arg(ttl).arg(channel);
                eval.arg(kind(*listens)).arg(always);
                eval.arg(limit_of(lease)).arg(period);
            }
            Self::Force { holder, spares } => {
                eval.arg(script("force_release"))
                    .arg(2)
                    .arg(body)
                    .arg(queue);
                eval.arg(holder).arg(channel).arg(always);
                eval.arg(i64::from(*spares));
            }
            Self::Release(lease) | Self::Leave(lease) => {
                let is_release = matches!(self, Self::Release(_));
                let name = if is_release { "release" } else { "leave" };
                eval.arg(script(name)).arg(2).arg(body).arg(queue);
                eval.arg(lease).arg(channel).arg(blind);
            }
            Self::Pass { .. } => {
                eval.arg(script("release_or_keep")).arg(3).arg(FENCE);
                eval.arg(body).arg(queue).arg(always);
                self.pass(channel, &mut eval);
            }
            Self::PassBoth(passes) => {
                eval.arg(script("release_or_keep")).arg(5).arg(FENCE);
                eval.arg(A.body).arg(B.body).arg(A.queue).arg(B.queue);
                eval.arg(always);
                for (pass, names) in passes.iter().zip([A, B]) {
                    pass.pass(names.channel, &mut eval);
                }
            }
            Self::Downgrade { lease, ttl, alone } => {
                let queue = Some(queue).filter(|_| !alone);
                eval.arg(script("downgrade")).arg(3 - i64::from(*alone));
                eval.arg(body).arg(FENCE).arg(queue);
                eval.arg(lease).arg(ttl).arg(channel).arg(always);
            }
            Self::Inspect => {
                eval.arg(script("inspect")).arg(2).arg(body).arg(queue);
            }
            Self::Renew { lease, ttl } => {
                eval.arg(script("renew"))
                    .arg(1)
                    .arg(body)
                    .arg(lease)
                    .arg(ttl);
            }
            Self::AcquireBoth { leases, ttl } | Self::RenewBoth { leases, ttl } => {
                match self {
                    Self::RenewBoth { .. } => eval.arg(script("renew")).arg(2),
                    _ => eval.arg(script("acquire_all")).arg(3).arg(FENCE),
                };
                eval.arg(A.body).arg(B.body);
                for lease in leases {
                    eval.arg(lease).arg(ttl);
                }
            }
            Self::ReleaseBoth(leases) | Self::LeaveBoth(leases) => {
                let is_release = matches!(self, Self::ReleaseBoth(_));
                eval.arg(script(if is_release { "release" } else { "leave" }))
                    .arg(4);
                eval.arg(A.body).arg(B.body).arg(A.queue).arg(B.queue);
                for (lease, names) in leases.iter().zip([A, B]) {
                    eval.arg(lease).arg(names.channel);
                }
                eval.arg(blind);
            }
            Self::Second(call) => return call.run_on(&B, flavor, connection, counted),
        }
        // Unlike `query`, it keeps the error of a rejected place inside a reply.
        self.parse(connection.req_command(&eval))
    }

    /// Adds the arguments of a lease that is kept or released.
    fn pass(&self, channel: &str, eval: &mut Cmd) {
        let Self::Pass {
            lease,
            ttl,
            own,
            next,
        } = self
        else {
            panic!("{self:?} is no `Pass`");
        };
        let (next, listens) = next.clone().unwrap_or_default();
        eval.arg(lease).arg(ttl).arg(channel).arg(own);
        eval.arg(COUNTERS).arg(next).arg(kind(listens));
    }

    fn parse(&self, reply: RedisResult<Value>) -> (Reply, i64) {
        let reply = match (self, reply) {
            // The replies for one lease.
            (Self::Pass { .. }, Ok(Value::Array(mut replies))) => Ok(replies.remove(0)),
            (_, reply) => reply,
        };
        let reply = match reply {
            Err(_) | Ok(Value::ServerError(_)) => return (Reply::Error, 0),
            Ok(reply) => reply,
        };
        if let Self::PassBoth(passes) = self {
            return Self::parse_passes(passes, reply);
        }
        if let Self::AcquireBoth { .. } | Self::ShareBoth { .. } = self {
            return self.parse_acquires(reply);
        }
        if let Self::RenewBoth { .. }
        | Self::RenewSharedBoth { .. }
        | Self::ReleaseBoth(_)
        | Self::LeaveBoth(_) = self
        {
            return (self.parse_both(reply), 0);
        }
        let is_list = matches!(reply, Value::Array(_));
        let fields = match reply {
            Value::Array(fields) => fields,
            reply => vec![reply],
        };
        let numbers = fields.iter().map_while(|field| match field {
            Value::Int(number) => Some(*number),
            _ => None,
        });
        let numbers: Vec<_> = numbers.collect();
        match (self, &numbers[..]) {
            (Self::Inspect, []) => (Reply::Number(-2), 0),
            (Self::Inspect, [left, queued]) => match &fields[2..] {
                [Value::BulkString(name), _, Value::Int(count)] => {
                    let name = String::from_utf8(name.clone()).unwrap();
                    (Reply::Shared(*left, *queued, *count, name), 0)
                }
                _ => (Reply::Held(*left, *queued), 0),
            },
            (
                Self::Contend { .. } | Self::Acquire { .. } | Self::Share { .. },
                [number, idle @ ..],
            ) if *number < -2 => {
                let granted = match idle {
                    [0, passed_over] => Reply::Granted(*passed_over),
                    _ if is_list => Reply::Again(idle.first().copied()),
                    _ => Reply::Granted(0),
                };
                (granted, -2 - number)
            }
            (Self::Contend { .. }, [left, queued, poll_after, freed]) => {
                (Reply::Waiting(*left, *queued, *poll_after, *freed), 0)
            }
            (Self::Contend { .. } | Self::Acquire { .. }, [-1]) => (Reply::Error, 0),
            (Self::Contend { .. } | Self::Acquire { .. } | Self::Share { .. }, [left]) => {
                (Reply::Outside(*left), 0)
            }
            (Self::RenewShared { .. }, []) => (Reply::Error, 0),
            (Self::Pass { .. }, [others, to, entered]) => {
                (Reply::Passed(*others, *to, *entered), 0)
            }
            (Self::Pass { .. }, [kept]) if *kept < 0 => (Reply::Kept, -kept),
            (Self::Pass { .. }, [1]) => (Reply::KeptBare, 0),
            (Self::Downgrade { .. }, [counter]) if *counter > 0 => (Reply::Downgraded, *counter),
            (_, [number]) => (Reply::Number(*number), 0),
            (call, _) => panic!("{call:?}: {fields:?}"),
        }
    }

    /// The reply for each lock is that of a call for one, or all are granted, with consecutive counters.
    fn parse_acquires(&self, reply: Value) -> (Reply, i64) {
        let replies = match reply {
            Value::Int(first) => vec![Value::Int(-2 - first), Value::Int(-3 - first)],
            Value::Array(replies) => replies,
            other => panic!("{self:?}: {other:?}"),
        };
        let share = Self::Share {
            lease: String::new(),
            ttl: 0,
        };
        let replies = replies.into_iter().map(|reply| share.parse(Ok(reply)));
        let (replies, counters): (Vec<_>, Vec<_>) = replies.unzip();
        let counters: BTreeSet<_> = counters.into_iter().filter(|it| *it > 0).collect();
        let first = counters.first().copied().unwrap_or(0);
        let is_grant = |it: &&Reply| matches!(it, Reply::Granted(_) | Reply::Again(_));
        let grants = replies.iter().filter(is_grant).count();
        assert!(counters.into_iter().eq((first..).take(grants)), "{self:?}");
        let replies: Vec<_> = replies.into_iter().map(Box::new).collect();
        (Reply::Each(replies.try_into().unwrap()), first)
    }

    /// The reply for each lock is that of a call for one. Returns the larger counter.
    fn parse_passes(passes: &[Box<Self>; 2], reply: Value) -> (Reply, i64) {
        let Value::Array(replies) = reply else {
            panic!("{passes:?}: {reply:?}");
        };
        let parsed = passes.iter().zip(replies);
        let parsed = parsed.map(|(pass, reply)| pass.parse(Ok(Value::Array(vec![reply]))));
        let (replies, counters): (Vec<_>, Vec<_>) = parsed.unzip();
        if let [first, second] = counters[..]
            && first.min(second) > 0
        {
            assert!(first.abs_diff(second) >= COUNTERS, "{first}, {second}");
        }
        let replies: Vec<_> = replies.into_iter().map(Box::new).collect();
        let latest = counters.into_iter().max().unwrap_or(0);
        (Reply::Each(replies.try_into().unwrap()), latest)
    }

    fn parse_both(&self, reply: Value) -> Reply {
        let replies = match reply {
            Value::Int(1) => vec![Value::Int(1), Value::Int(1)],
            Value::Array(replies) => replies,
            other => panic!("{self:?}: {other:?}"),
        };
        let each = replies.into_iter().map(|reply| match reply {
            Value::ServerError(_) => Reply::Error,
            Value::Int(number) => Reply::Number(number),
            other => panic!("{self:?}: {other:?}"),
        });
        let each: Vec<_> = each.map(Box::new).collect();
        Reply::Each(each.try_into().unwrap())
    }
}
