//! The scripts of the queue, as the backend composes them.

use redis::{Connection, ConnectionLike as _, RedisResult, Value};

use super::model::{CONFIRM, Counted, Reply};

pub(crate) const BODY: &str = "lock:a";
pub(crate) const QUEUE: &str = "lock:{lock:a}%queue";
const FENCE: &str = "lock:{fencing-token}%";
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
    ("numbered") => {
        concat!("local FENCE = 'lock:{fencing-token}%'\n", piece!(file "numbered"))
    };
    (file $name:tt) => {
        include_str!(concat!("../../../src/backend/redis/command/lua/", $name, ".lua"))
    };
    ($name:tt) => {
        piece!(file $name)
    };
}

macro_rules! lua {
    ($($name:tt),+) => {
        concat!($(piece!($name)),+)
    };
}

const ACQUIRE: &str = lua!("fence", "acquire");
const ACQUIRE_ALL: &str = lua!("fence", "acquire_all");
const RENEW: &str = lua!("renew");
const CONTEND: &str = lua!(
    "fence",
    "publish",
    "numbered",
    "listeners",
    "queue",
    "contend"
);
const RELEASE: &str = lua!(
    "publish",
    "release",
    "fence",
    "numbered",
    "listeners",
    "queue",
    "release_wanted"
);
const LEAVE: &str = lua!(
    "fence",
    "publish",
    "numbered",
    "listeners",
    "queue",
    "leave"
);
const PASS: &str = lua!(
    "fence",
    "publish",
    "numbered",
    "listeners",
    "queue",
    "release_or_keep"
);
const FORCE: &str = lua!(
    "fence",
    "publish",
    "numbered",
    "listeners",
    "queue",
    "force_release"
);
const INSPECT: &str = lua!("publish", "unnumbered", "listeners", "queue", "inspect");

/// All of them.
pub(crate) const SOURCES: [&str; 9] = [
    ACQUIRE,
    ACQUIRE_ALL,
    CONTEND,
    RENEW,
    RELEASE,
    LEAVE,
    PASS,
    FORCE,
    INSPECT,
];

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
    /// Returns the reply, and the counter of a grant, or the number of a reply that counters of later transfers exceed.
    pub(crate) fn run(&self, connection: &mut Connection, counted: Counted) -> (Reply, i64) {
        self.run_on(&A, connection, counted)
    }

    fn run_on(&self, names: &Names, connection: &mut Connection, counted: Counted) -> (Reply, i64) {
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
        match self {
            Self::Acquire { lease, ttl } => {
                eval.arg(ACQUIRE).arg(2).arg(body).arg(FENCE);
                eval.arg(lease).arg(ttl);
            }
            Self::Contend {
                lease,
                ttl,
                listens,
            } => {
                eval.arg(CONTEND).arg(3).arg(body).arg(queue).arg(FENCE);
                eval.arg(lease).arg(ttl).arg(channel);
                eval.arg(kind(*listens)).arg(always);
            }
            Self::Release(lease) | Self::Leave(lease) => {
                let is_release = matches!(self, Self::Release(_));
                eval.arg(if is_release { RELEASE } else { LEAVE });
                eval.arg(2).arg(body).arg(queue);
                eval.arg(lease).arg(channel).arg(blind);
            }
            Self::Force(lease) => {
                eval.arg(FORCE).arg(2).arg(body).arg(queue);
                eval.arg(lease).arg(channel).arg(blind);
            }
            Self::Pass {
                lease,
                ttl,
                own,
                next,
            } => {
                eval.arg(PASS).arg(3).arg(body).arg(FENCE).arg(queue);
                eval.arg(lease).arg(ttl).arg(channel).arg(own);
                eval.arg(8).arg(1);
                let (next, listens) = next.clone().unwrap_or_default();
                eval.arg(next).arg(kind(listens)).arg(always);
            }
            Self::Inspect => {
                eval.arg(INSPECT).arg(2).arg(body).arg(queue);
            }
            Self::Renew { lease, ttl } => {
                eval.arg(RENEW).arg(1).arg(body).arg(lease).arg(ttl);
            }
            Self::AcquireBoth { leases, ttl } | Self::RenewBoth { leases, ttl } => {
                match self {
                    Self::RenewBoth { .. } => eval.arg(RENEW).arg(2),
                    _ => eval.arg(ACQUIRE_ALL).arg(3).arg(FENCE),
                };
                eval.arg(A.body).arg(B.body);
                for lease in leases {
                    eval.arg(lease).arg(ttl);
                }
            }
            Self::ReleaseBoth(leases) | Self::LeaveBoth(leases) => {
                let is_release = matches!(self, Self::ReleaseBoth(_));
                eval.arg(if is_release { RELEASE } else { LEAVE }).arg(4);
                eval.arg(A.body).arg(B.body).arg(A.queue).arg(B.queue);
                for (lease, names) in leases.iter().zip([A, B]) {
                    eval.arg(lease).arg(names.channel);
                }
                eval.arg(blind);
            }
            Self::Second(call) => return call.run_on(&B, connection, counted),
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
