//! Made-up commands of renewals.

use std::time::{Duration, UNIX_EPOCH};

use crate::load::{PERMITTED, READ};
use crate::referee::wire::{RENEW, SHARE_RENEW, Wire};
use crate::referee::{Hold, Referee};
use crate::run::Run;
use crate::support::engine::SECOND;

/// A lease of the first process, which holds the keys.
const LEASE: &str = "1a:7";
/// A lease of the second one, which does not.
const OTHER: &str = "2b:7";

/// A command of a script in a call.
type Step<'a> = &'a [&'a str];

/// A record of one server.
struct Record {
    /// The seconds since the epoch, as `MONITOR` prints them.
    at: String,
    lines: Vec<String>,
}

impl Record {
    /// Adds a command of a client, or of `lua`.
    fn sends(mut self, from: &str, args: &[&str]) -> Self {
        let at = &self.at;
        let args = args.join("\" \"");
        self.lines.push(format!("{at} [0 {from}] \"{args}\""));
        self
    }

    /// Adds a renewal of a shared lease or a permit, and its steps.
    fn renews(self, from: &str, key: &str, name: &str, steps: &[Step<'_>]) -> Self {
        let (body, queue) = (format!("lock:{key}"), format!("lock:{{lock:{key}}}%queue"));
        let channel = format!("redisson_lock__channel:{{lock:{key}}}");
        let head = ["EVALSHA", &SHARE_RENEW[0], "2", &body, &queue];
        let call = [&head[..], &["0", name, "1500", &channel]].concat();
        let record = self.sends(from, &call);
        let steps = steps.iter();
        steps.fold(record, |record, step| record.sends("lua", step))
    }

    fn releases(self, from: &str, key: &str, lease: &str) -> Self {
        let body = format!("lock:{key}");
        let channel = format!("redisson_lock__channel:{{lock:{key}}}");
        self.sends(from, &["EVALSHA", "hash", "1", &body, lease, &channel])
    }

    /// Returns the broken invariants.
    fn broken(self, referee: &Referee) -> Vec<&'static str> {
        let managers = [LEASE, OTHER].map(|lease| lease[..2].to_owned());
        let wire = Wire {
            referee,
            alone: true,
            managers: &managers,
        };
        wire.judge(&self.lines);
        let violations = std::mem::take(&mut referee.log().violations);
        violations.into_iter().map(|it| it.of).collect()
    }
}

/// A renewal of a shared lease or a permit writes only its own field, which it has found, before its release and under
/// a guard of its process.
pub(crate) fn detects_renewals(run: &mut Run) {
    const BODY: &str = "lock:shared:read";
    let referee = Referee::without_a_runtime();
    for key in [READ, PERMITTED] {
        let hold = Hold::begins(key, 0, 1, (SECOND, true));
        let deadlines = vec![hold.granted + 60 * SECOND];
        referee.log().holds.push(Hold { deadlines, ..hold });
    }
    let record = || {
        let since = referee.start.1.duration_since(UNIX_EPOCH);
        let at = since.unwrap_or_default() + Duration::from_millis(10);
        let at = format!("{}.{:06}", at.as_secs(), at.subsec_micros());
        let lines = Vec::new();
        Record { at, lines }
    };
    let (reader, permit) = (&*format!("s{LEASE}"), &*format!("p{LEASE}"));
    let other = &*format!("s{OTHER}");
    let (read, write) = (["HGET", BODY, reader], ["HSET", BODY, reader, "1"]);
    let found: &[Step<'_>] = &[&read, &["PEXPIRE", BODY, "1500"], &write];
    let judged = [
        (
            "own field",
            record().renews("a", READ, reader, found),
            &[][..],
        ),
        (
            "a permit",
            record().renews("a", PERMITTED, permit, &[]),
            &[],
        ),
        (
            "a field that was not read",
            record().renews("a", READ, reader, &[&write]),
            &["I9"],
        ),
        (
            "a field that the call before read",
            record()
                .renews("a", READ, reader, &[&read])
                .renews("a", READ, reader, &[&write]),
            &["I9"],
        ),
        (
            "a field of another lease",
            record().renews(
                "a",
                READ,
                reader,
                &[&["HGET", BODY, other], &["HSET", BODY, other, "1"]],
            ),
            &["I9"],
        ),
        (
            "a field besides its own",
            record().renews(
                "a",
                READ,
                reader,
                &[&read, &["HSET", BODY, reader, "1", "mode", "shared"]],
            ),
            &["I9"],
        ),
        (
            "an exclusive field",
            record()
                .sends("a", &["EVALSHA", &RENEW, "1", "lock:k", LEASE, "1500"])
                .sends("lua", &["HGET", "lock:k", LEASE])
                .sends("lua", &["HSET", "lock:k", LEASE, "1"]),
            &["I9"],
        ),
        (
            "after its release",
            record()
                .releases("a", READ, LEASE)
                .renews("a", READ, reader, &[&read]),
            &["I8"],
        ),
        (
            "after its release on another connection",
            record()
                .releases("b", READ, LEASE)
                .renews("a", READ, reader, &[&read]),
            &[],
        ),
        (
            "reader without a guard",
            record().renews("a", READ, other, &[]),
            &["I9"],
        ),
        (
            "permit without a guard",
            record().renews("a", PERMITTED, &format!("p{OTHER}"), &[]),
            &["I9"],
        ),
    ];
    for (what, record, expected) in judged {
        let broken = record.broken(&referee);
        run.proof(broken == expected, format!("{what}: {broken:?}"));
    }
}
