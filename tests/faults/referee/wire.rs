//! I8 and I9: the commands that a server received.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::Referee;

/// The time from the decision to renew to the arrival at the server, on a busy machine.
const ON_THE_WAY: Duration = Duration::from_millis(150);

/// The hash of the renewal script. An acquire in a slot that is moving has arguments of the same form.
static RENEW: LazyLock<String> = LazyLock::new(|| {
    let source = include_str!("../../../src/backend/redis/command/lua/renew.lua");
    redis::Script::new(source).get_hash().to_owned()
});

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

/// The keys and leases of one command.
enum Call<'a> {
    Renew(Vec<(&'a str, &'a str)>),
    Release(Vec<(&'a str, &'a str)>),
    Other,
}

/// The keys that may stay. No lock has such a name.
pub(crate) fn is_counter(key: &str) -> bool {
    key.ends_with('%') || key.ends_with("{fencing-token}%quorum")
}

/// The number of renewals and releases.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) renewals: usize,
    pub(crate) releases: usize,
}

/// Judges the commands of one server, in their order.
///
/// `alone`: the server has all locks. A node of a quorum whose vote was late receives a release of that
/// vote, and renewals in spite of it.
pub(crate) fn judge(referee: &Referee, alone: bool, lines: &[String]) -> Seen {
    let mut seen = Seen::default();
    let mut released = HashSet::new();
    let mut in_a_renewal = false;
    let mut violations = Vec::new();
    for line in lines.iter().filter_map(|line| Line::parse(line)) {
        if line.from == "lua" {
            // A renewal creates no lease.
            if in_a_renewal && line.args[0].eq_ignore_ascii_case("hset") {
                violations.push(("I9", format!("a renewal wrote {:?}", line.args)));
            }
            continue;
        }
        let call = line.calls();
        in_a_renewal = matches!(call, Call::Renew(_));
        match call {
            Call::Renew(leases) => {
                seen.renewals += leases.len();
                for (key, lease) in leases {
                    // Only commands of one connection arrive in the order in which they were sent.
                    if alone && released.contains(&(line.from, lease)) {
                        violations
                            .push(("I8", format!("{key}: {lease} renewed after its release")));
                    }
                    if is_without_a_guard(referee, key, line.at) {
                        let at = line.at;
                        violations.push(("I9", format!("{key}: renewed at {at:?} for no guard")));
                    }
                }
            }
            Call::Release(leases) => {
                seen.releases += leases.len();
                released.extend(leases.into_iter().map(|(_, lease)| (line.from, lease)));
            }
            Call::Other => {}
        }
    }
    for (of, what) in violations {
        referee.violation(of, what);
    }
    seen
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
        Call::Renew(leases) => leases.iter().any(|(_, lease)| lease.starts_with(manager)),
        _ => false,
    };
    let renewals = calls.filter(of_manager);
    renewals.map(|call| UNIX_EPOCH + call.at).collect()
}

/// Returns `true` for a renewal of a key while its only worker had no guard.
fn is_without_a_guard(referee: &Referee, key: &str, at: Duration) -> bool {
    let Some(key) = key
        .strip_prefix("lock:")
        .filter(|key| key.starts_with("own:"))
    else {
        return false;
    };
    let start = referee
        .start
        .1
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let log = referee.log();
    // The line does not tell whether the clock had stepped.
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
    let covers = |end: Instant, at| end + ON_THE_WAY + referee.stall_detector.delay(end, at) >= at;
    let is_guarded = |at: Instant| {
        (log.holds.iter()).any(|hold| {
            hold.key == key && hold.granted <= at + ON_THE_WAY && covers(hold.end(), at)
        })
    };
    !moments.any(|at| is_troubled(at) || is_guarded(at))
}
