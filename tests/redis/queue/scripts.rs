//! The scripts of the queue, as the backend composes them.

use redis::{Connection, ConnectionLike as _, RedisResult, Value};

use super::model::{CONFIRM, Counted, Reply};

pub(crate) const BODY: &str = "lock:a";
pub(crate) const QUEUE: &str = "lock:{lock:a}%queue";
const FENCE: &str = "lock:{fencing-token}%";
pub(crate) const CHANNEL: &str = "redisson_lock__channel:{lock:a}";

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
pub(crate) const SOURCES: [&str; 7] = [ACQUIRE, CONTEND, RELEASE, LEAVE, PASS, FORCE, INSPECT];

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
}

fn kind(listens: bool) -> &'static str {
    if listens { "!" } else { "?" }
}

impl Call {
    /// Returns the reply, and the counter of a grant, or the number of a reply that counters of later transfers exceed.
    pub(crate) fn run(&self, connection: &mut Connection, counted: Counted) -> (Reply, i64) {
        let blind = match counted {
            Counted::All => None,
            Counted::Ours => Some(1),
            Counted::Nothing => Some(2),
        };
        let always = blind.unwrap_or(0);
        let mut eval = redis::cmd("EVAL");
        match self {
            Self::Acquire { lease, ttl } => {
                eval.arg(ACQUIRE).arg(2).arg(BODY).arg(FENCE);
                eval.arg(lease).arg(ttl);
            }
            Self::Contend {
                lease,
                ttl,
                listens,
            } => {
                eval.arg(CONTEND).arg(3).arg(BODY).arg(QUEUE).arg(FENCE);
                eval.arg(lease).arg(ttl).arg(CHANNEL);
                eval.arg(kind(*listens)).arg(always);
            }
            Self::Release(lease) | Self::Leave(lease) => {
                let is_release = matches!(self, Self::Release(_));
                eval.arg(if is_release { RELEASE } else { LEAVE });
                eval.arg(2).arg(BODY).arg(QUEUE);
                eval.arg(lease).arg(CHANNEL).arg(blind);
            }
            Self::Force(lease) => {
                eval.arg(FORCE).arg(2).arg(BODY).arg(QUEUE);
                eval.arg(lease).arg(CHANNEL).arg(blind);
            }
            Self::Pass {
                lease,
                ttl,
                own,
                next,
            } => {
                eval.arg(PASS).arg(3).arg(BODY).arg(FENCE).arg(QUEUE);
                eval.arg(lease).arg(ttl).arg(CHANNEL).arg(own);
                eval.arg(8).arg(1);
                let (next, listens) = next.clone().unwrap_or_default();
                eval.arg(next).arg(kind(listens)).arg(always);
            }
            Self::Inspect => {
                eval.arg(INSPECT).arg(2).arg(BODY).arg(QUEUE);
            }
        }
        // Unlike `query`, it keeps the error of a rejected place inside a reply.
        self.parse(connection.req_command(&eval))
    }

    fn parse(&self, reply: RedisResult<Value>) -> (Reply, i64) {
        let reply = match reply {
            Err(_) | Ok(Value::ServerError(_)) => return (Reply::Error, 0),
            Ok(reply) => reply,
        };
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
            (Self::Contend { .. }, [left, queued, poll_after, passed_over, rest @ ..]) => {
                let reply = Reply::Waiting(*left, *queued, *poll_after, *passed_over);
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
}
