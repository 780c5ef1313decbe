//! I8 and I9: the commands that a server received.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::Referee;
use crate::load::{PERMITTED, READ};

/// The time from the decision to renew to the arrival at the server, on a busy machine.
const ON_THE_WAY: Duration = Duration::from_millis(150);

macro_rules! piece {
    ($name:tt) => {
        include_str!(concat!(
            "../../../src/backend/redis/command/lua/",
            $name,
            ".lua"
        ))
    };
}

/// The hash of the renewal script. An acquire in a slot that is moving has arguments of the same form.
pub(super) static RENEW: LazyLock<String> = LazyLock::new(|| hash(piece!("renew")));

/// The hashes of the script that renews shared leases and permits, with plain and with sharded messages.
pub(super) static SHARE_RENEW: LazyLock<[String; 2]> = LazyLock::new(|| {
    [piece!("publish"), piece!("publish_sharded")].map(|report| {
        let pieces = [
            report,
            piece!("listeners"),
            piece!("hold_free"),
            piece!("queue"),
            piece!("wanted"),
            piece!("share_renew"),
        ];
        hash(&pieces.concat())
    })
});

fn hash(source: &str) -> String {
    redis::Script::new(source).get_hash().to_owned()
}

/// A line of `MONITOR`.
struct Line<'a> {
    /// The time since the epoch.
    at: Duration,
    from: &'a str,
    args: Vec<&'a str>,
}

impl<'a> Line<'a> {
    /// Parses `seconds.micros [db address] "arg" "arg"…`. No argument contains quotes.
    fn parse(line: &'a str) -> Option<Self> {
        let (at, rest) = line.split_once(" [")?;
        let (from, args) = rest.split_once("] ")?;
        let (seconds, micros) = at.split_once('.')?;
        Some(Self {
            at: Duration::from_secs(seconds.parse().ok()?)
                + Duration::from_micros(micros.parse().ok()?),
            from: from.split_once(' ')?.1,
            args: args.trim_matches('"').split("\" \"").collect(),
        })
    }

    fn calls(&self) -> Call<'a> {
        let is_script = self.args[0].eq_ignore_ascii_case("EVALSHA");
        let Some(keys) = self.args.get(2).filter(|_| is_script) else {
            return Call::Other;
        };
        let Some((keys, rest)) =
            (keys.parse().ok()).and_then(|keys: usize| self.args[3..].split_at_checked(keys))
        else {
            return Call::Other;
        };
        // Their queues follow the bodies, except for one that is at another node.
        if SHARE_RENEW.iter().any(|hash| hash == self.args[1]) {
            let named = rest.get(1..).unwrap_or_default().chunks_exact(3);
            let names = named.map(|named| named[0]);
            return Call::Renew(keys.iter().copied().zip(names).collect());
        }
        let is_release = (rest.get(1)).is_some_and(|second| second.contains("channel"));
        // Every other command that touches a counter grants.
        if !is_release && keys.iter().any(|key| is_counter(key)) {
            return Call::Other;
        }
        // The arguments begin with the bodies. Their queues and a counter follow, if there are any.
        let leases = || {
            let leases = rest.chunks_exact(2).map(|pair| pair[0]);
            keys.iter().copied().zip(leases).collect()
        };
        let is_number = |arg: &&str| arg.bytes().all(|byte| byte.is_ascii_digit());
        match rest.get(1) {
            Some(second)
                if rest.len() == 2 * keys.len() && is_number(second) && self.args[1] == *RENEW =>
            {
                Call::Renew(leases())
            }
            Some(_) if is_release => Call::Release(leases()),
            _ => Call::Other,
        }
    }
}

/// The bodies of one command, each with the name of its lease.
enum Call<'a> {
    Renew(Vec<(&'a str, &'a str)>),
    Release(Vec<(&'a str, &'a str)>),
    Other,
}

/// Returns the lease id behind the letter of a shared lease or a permit. An id begins with a hexadecimal digit.
fn id(name: &str) -> &str {
    name.strip_prefix(['s', 'p']).unwrap_or(name)
}

/// The keys that may stay. No lock has such a name.
pub(crate) fn is_counter(key: &str) -> bool {
    key.ends_with('%') || key.ends_with("{fencing-token}%quorum")
}

/// The number of renewals and releases.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) renewals: usize,
    /// The renewals of shared leases and permits.
    pub(crate) shared: usize,
    pub(crate) releases: usize,
}

/// What the judgment of the commands of one server depends on.
pub(crate) struct Wire<'a> {
    pub(crate) referee: &'a Referee,
    /// `true` if the server has all locks. A node of a quorum whose vote was late receives a release of that
    /// vote, and renewals in spite of it.
    pub(crate) alone: bool,
    /// The names of the managers, which are the prefixes of their leases, by process.
    pub(crate) managers: &'a [String],
}

impl Wire<'_> {
    /// Judges the commands of one server, in their order.
    pub(crate) fn judge(&self, lines: &[String]) -> Seen {
        let mut seen = Seen::default();
        let mut released = HashSet::new();
        let mut renewal = None;
        for line in lines.iter().filter_map(|line| Line::parse(line)) {
            if line.from == "lua" {
                if let Some(renewal) = &mut renewal {
                    self.step(renewal, &line.args);
                }
                continue;
            }
            renewal = None;
            match line.calls() {
                Call::Renew(leases) => {
                    seen.renewals += leases.len();
                    for (key, name) in &leases {
                        seen.shared += usize::from(id(name) != *name);
                        // Only commands of one connection arrive in the order in which they were sent.
                        if self.alone && released.contains(&(line.from, id(name))) {
                            let what = format!("{key}: {name} renewed after its release");
                            self.referee.violation("I8", what);
                        }
                        if self.is_without_a_guard(key, name, line.at) {
                            let what =
                                format!("{key}: {name} renewed at {:?} for no guard", line.at);
                            self.referee.violation("I9", what);
                        }
                    }
                    let read = HashSet::new();
                    renewal = Some(Renewing { leases, read });
                }
                Call::Release(leases) => {
                    seen.releases += leases.len();
                    released.extend(leases.into_iter().map(|(_, lease)| (line.from, lease)));
                }
                Call::Other => {}
            }
        }
        seen
    }

    /// A renewal creates no lease: it writes only the deadline of a lease that it has read.
    fn step<'a>(&self, renewal: &mut Renewing<'a>, args: &[&'a str]) {
        match args[0].to_ascii_lowercase().as_str() {
            "hget" => renewal
                .read
                .extend(args.get(1).copied().zip(args.get(2).copied())),
            "hset" | "hmset" | "hsetnx" | "hincrby" => {
                let body = args.get(1).copied().unwrap_or_default();
                let fields = args[2..].iter().step_by(2);
                let known = |field: &&str| {
                    let field = (body, *field);
                    id(field.1) != field.1
                        && renewal.read.contains(&field)
                        && renewal.leases.contains(&field)
                };
                self.referee.expect(fields.clone().all(known), "I9", || {
                    format!("a renewal wrote {args:?}")
                });
            }
            _ => {}
        }
    }

    /// Returns `true` for a renewal of a key while its only worker in this process had no guard.
    fn is_without_a_guard(&self, key: &str, name: &str, at: Duration) -> bool {
        let referee = self.referee;
        let key = key.strip_prefix("lock:").unwrap_or_default();
        let of_process = |manager: &String| id(name).starts_with(manager.as_str());
        let process = self.managers.iter().position(of_process);
        // A process outside the run may have the same workers, and its name is unknown here.
        let is_judged =
            key.starts_with("own:") || [READ, PERMITTED].contains(&key) && process.is_some();
        if !is_judged {
            return false;
        }
        let start = referee
            .start
            .1
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let log = referee.log();
        // `MONITOR` does not report the offset of the clock, so each recorded one is tried.
        let ahead = log.clock_steps.iter().copied();
        let mut moments = ahead.chain([0]).filter_map(|ahead| {
            let at = i64::try_from(at.as_micros()).ok()? - 1_000 * ahead;
            let since = Duration::from_micros(at.try_into().ok()?).checked_sub(start);
            Some(referee.start.0 + since?)
        });
        // A stalled process can delay commands for any time.
        let is_troubled = |at: Instant| {
            log.outages.iter().any(|outage| {
                let over = log.divided_until.max(Some(outage.usable));
                at >= outage.begin && over.is_some_and(|over| at <= over + Duration::from_secs(1))
            })
        };
        let covers =
            |end: Instant, at| end + ON_THE_WAY + referee.stall_detector.delay(end, at) >= at;
        let is_guarded = |at: Instant| {
            (log.holds.iter()).any(|hold| {
                hold.key == key
                    && process.is_none_or(|process| hold.process == process)
                    && hold.granted <= at + ON_THE_WAY
                    && covers(hold.end(), at)
            })
        };
        !moments.any(|at| is_troubled(at) || is_guarded(at))
    }
}

/// A renewal whose commands follow, and the fields that it has read.
struct Renewing<'a> {
    leases: Vec<(&'a str, &'a str)>,
    read: HashSet<(&'a str, &'a str)>,
}

/// A call that released leases, with its exact arguments and its keys.
pub(crate) struct Release {
    pub(crate) args: Vec<String>,
    pub(crate) keys: Vec<String>,
}

/// Returns the same call for these keys alone.
pub(crate) fn releases_of(lines: &[String], keys: &[String]) -> Vec<Release> {
    let owned = |words: Vec<&str>| words.into_iter().map(ToOwned::to_owned).collect();
    let ours = |body: &str| {
        body.strip_prefix("lock:")
            .is_some_and(|key| keys.iter().any(|it| it == key))
    };
    let sent = lines
        .iter()
        .filter_map(|line| Line::parse(line))
        .filter(|line| line.from != "lua");
    let releases = sent.filter_map(|line| match line.calls() {
        Call::Release(leases) if leases.iter().all(|(body, _)| ours(body)) => Some(Release {
            keys: owned(leases.into_iter().map(|(body, _)| body).collect()),
            args: owned(line.args),
        }),
        _ => None,
    });
    releases.collect()
}

/// Returns the times at which renewals of this manager's leases were sent.
pub(crate) fn renewals_of(lines: &[String], manager: &str) -> Vec<SystemTime> {
    let calls = lines.iter().filter_map(|line| Line::parse(line));
    let of_manager = |call: &Line<'_>| match call.calls() {
        Call::Renew(leases) => leases.iter().any(|(_, name)| id(name).starts_with(manager)),
        _ => false,
    };
    let renewals = calls.filter(of_manager);
    renewals.map(|call| UNIX_EPOCH + call.at).collect()
}
