//! The scripts of the queue, as the backend composes them.

use redis::{Connection, ConnectionLike as _, RedisResult, Value};

use super::model::{CONFIRM, Counted, Reply};

pub(crate) const BODY: &str = "lock:a";
pub(crate) const QUEUE: &str = "lock:{lock:a}%queue";
pub(crate) const FENCE: &str = "lock:{fencing-token}%";
const QUARANTINE: &str = "lock:{fencing-token}%quarantine";
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
}

/// All scripts.
pub(crate) const SCRIPTS: [&str; 9] = [
    "acquire",
    "acquire_all",
    "contend",
    "renew",
    "release",
    "leave",
    "release_or_keep",
    "force_release",
    "inspect",
];

/// Returns the source of a script.
pub(crate) fn source(script: &str, flavor: Flavor) -> String {
    let (report, listeners) = match flavor {
        Flavor::Plain | Flavor::Guarded => (piece!("publish"), piece!("listeners")),
        Flavor::Sharded => (piece!("publish_sharded"), piece!("listeners_sharded")),
        Flavor::Both => (piece!("publish_both"), piece!("listeners_both")),
    };
    let guarded = flavor == Flavor::Guarded;
    let guard = [piece!("started"), piece!("quarantine"), piece!("guard")].concat();
    let guard = if guarded { &guard } else { "" };
    let fence = piece!("fence");
    let numbered = concat!(
        "local FENCE = 'lock:{fencing-token}%'\n",
        piece!("numbered")
    );
    let (numbers, fence_of_transfer) = match guarded {
        true => (piece!("unnumbered"), ""),
        false => (numbered, fence),
    };
    let queue = [numbers, listeners, piece!("queue")].concat();
    let pieces: &[&str] = match script {
        "acquire" => &[fence, guard, piece!("acquire")],
        "acquire_all" => &[fence, piece!("acquire_all")],
        "contend" => &[fence, guard, report, &queue, piece!("contend")],
        "renew" => &[piece!("renew")],
        "release" => &[
            report,
            piece!("release"),
            fence_of_transfer,
            &queue,
            piece!("release_wanted"),
        ],
        "leave" => &[fence_of_transfer, report, &queue, piece!("leave")],
        "release_or_keep" => &[fence, report, &queue, piece!("release_or_keep")],
        "force_release" => &[fence_of_transfer, report, &queue, piece!("force_release")],
        "inspect" => &[
            report,
            piece!("unnumbered"),
            listeners,
            piece!("queue"),
            piece!("inspect"),
        ],
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
    Contend {
        lease: String,
        ttl: i64,
        listens: bool,
    },
    Release(String),
    Leave(String),
    Force(String),
    Pass {
        lease: String,
        ttl: i64,
        own: i64,
        next: Option<(String, bool)>,
        /// Otherwise the lease is kept, or nothing changes.
        releases: bool,
    },
    Inspect,
    Renew {
        lease: String,
        ttl: i64,
    },
    AcquireBoth {
        leases: [String; 2],
        ttl: i64,
    },
    RenewBoth {
        leases: [String; 2],
        ttl: i64,
    },
    ReleaseBoth([String; 2]),
    LeaveBoth([String; 2]),
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

    /// Returns the reply, and the counter of a grant, or the number of a reply that counters of later transfers exceed.
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
                eval.arg(kind(*listens)).arg(always).arg(period);
            }
            Self::Release(lease) | Self::Leave(lease) | Self::Force(lease) => {
                let name = match self {
                    Self::Release(_) => "release",
                    Self::Leave(_) => "leave",
                    _ => "force_release",
                };
                eval.arg(script(name)).arg(2).arg(body).arg(queue);
                eval.arg(lease).arg(channel).arg(blind);
            }
            Self::Pass {
                lease,
                ttl,
                own,
                next,
                releases,
            } => {
                eval.arg(script("release_or_keep")).arg(3).arg(body);
                eval.arg(FENCE).arg(queue);
                eval.arg(lease).arg(ttl).arg(channel).arg(own);
                eval.arg(8).arg(i64::from(*releases));
                let (next, listens) = next.clone().unwrap_or_default();
                eval.arg(next).arg(kind(listens)).arg(always);
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

    fn parse(&self, reply: RedisResult<Value>) -> (Reply, i64) {
        let reply = match reply {
            Err(_) | Ok(Value::ServerError(_)) => return (Reply::Error, 0),
            Ok(reply) => reply,
        };
        if let Self::AcquireBoth { .. }
        | Self::RenewBoth { .. }
        | Self::ReleaseBoth(_)
        | Self::LeaveBoth(_) = self
        {
            return self.parse_both(reply);
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
            (Self::Inspect, [left, queued, ..]) => (Reply::Held(*left, *queued), 0),
            (Self::Contend { .. } | Self::Acquire { .. }, [number, idle @ ..]) if *number < -2 => {
                let granted = match idle {
                    [0, passed_over] => Reply::Granted(*passed_over),
                    _ if is_list => Reply::Again(idle.first().copied()),
                    _ => Reply::Granted(0),
                };
                (granted, -2 - number)
            }
            (Self::Contend { .. }, [left, queued, poll_after, freed, rest @ ..]) => {
                let reply = Reply::Waiting(*left, *queued, *poll_after, *freed);
                match rest {
                    [] => (reply, 0),
                    [number, CONFIRM] => (reply, *number),
                    other => panic!("{other:?}"),
                }
            }
            (Self::Contend { .. } | Self::Acquire { .. }, [-1]) => (Reply::Error, 0),
            (Self::Contend { .. } | Self::Acquire { .. }, [left]) => (Reply::Outside(*left), 0),
            (Self::Pass { .. }, [others, to, queued]) => (Reply::Passed(*others, *to, *queued), 0),
            (Self::Pass { .. }, [kept]) if *kept < 0 => (Reply::Kept, -kept),
            (Self::Pass { .. }, []) => (Reply::KeptBare, 0),
            (_, [number]) => (Reply::Number(*number), 0),
            (call, _) => panic!("{call:?}: {fields:?}"),
        }
    }

    fn parse_both(&self, reply: Value) -> (Reply, i64) {
        let acquires = matches!(self, Self::AcquireBoth { .. });
        let (first, replies) = match (reply, acquires) {
            (Value::Int(first), true) => (first, vec![Value::Int(-3), Value::Int(-3)]),
            (Value::Int(1), false) => (0, vec![Value::Int(1), Value::Int(1)]),
            (Value::Array(replies), false) => (0, replies),
            (Value::Array(mut replies), true) => match replies.remove(0) {
                Value::Int(first) => (first, replies),
                Value::Nil => (0, replies),
                other => panic!("{other:?}"),
            },
            (other, _) => panic!("{self:?}: {other:?}"),
        };
        let each = replies.into_iter().map(|reply| match reply {
            Value::ServerError(_) => Reply::Error,
            Value::Int(-3) if acquires => Reply::Granted(0),
            Value::Int(left) if acquires => Reply::Outside(left),
            Value::Int(number) => Reply::Number(number),
            other => panic!("{self:?}: {other:?}"),
        });
        let each: Vec<_> = each.map(Box::new).collect();
        (Reply::Each(each.try_into().unwrap()), first)
    }
}
