//! Made-up holds of one key.

use std::time::Duration;

use tower_lock::backend::Mode;

use crate::referee::{Hold, Referee, Verdict, drift};
use crate::rows::Row;
use crate::run::Run;
use crate::store::Topology;
use crate::support::engine::SECOND;

/// A hold that is made up: its mode, its token, and the milliseconds of its grant and its release.
type MadeUp = (Mode, i64, u64, u64);

/// Judges made-up holds of one key. Returns the broken invariants.
fn broken_by(holds: &[MadeUp]) -> Vec<&'static str> {
    let holds = holds.iter().map(|hold| (*hold, 0));
    broken_below(&holds.collect::<Vec<_>>())
}

/// As [`broken_by`]. The second number is the limit of a permit.
fn broken_below(holds: &[(MadeUp, u32)]) -> Vec<&'static str> {
    let referee = Referee::without_a_runtime();
    let at = |millis| referee.start.0 + Duration::from_millis(millis);
    for ((mode, token, granted, released), limit) in holds {
        let hold = Hold::begins("k", 0, *token, (SECOND, true));
        let (granted, released) = (at(*granted), at(*released));
        referee.log().holds.push(Hold {
            mode: *mode,
            limit: *limit,
            asked: granted,
            granted,
            confirmed: released,
            released: Some(released),
            deadlines: vec![released],
            ..hold
        });
    }
    let row = Row::new(Topology::Own, "made up", |_| Box::pin(async {}));
    judged(&row, &referee)
}

fn judged(row: &Row, referee: &Referee) -> Vec<&'static str> {
    let verdict = Verdict::of(row, referee, &[], &[]);
    verdict.violations.into_iter().map(|it| it.of).collect()
}

/// A new primary grants a key to one process while another one has it from the former primary, until all servers agree.
/// The lower token is in order only if its lease is older than the other grant.
pub(crate) fn detects_tokens_of_divided_servers(run: &mut Run) {
    for (what, lease_from, expected) in [
        ("a lease from before", 50, &[][..]),
        ("a lease from after", 70, &["I1", "I4"]),
    ] {
        let referee = Referee::without_a_runtime();
        let at = |millis| referee.start.0 + Duration::from_millis(millis);
        for (token, lease_from, granted, released) in [(2, 60, 60, 90), (1, lease_from, 70, 80)] {
            let hold = Hold::begins("k", 0, token, (SECOND, true));
            referee.log().holds.push(Hold {
                asked: at(granted),
                granted: at(granted),
                confirmed: at(granted),
                released: Some(at(released)),
                deadlines: vec![at(lease_from) + SECOND - drift(SECOND)],
                ..hold
            });
        }
        referee.log().divided_until = Some(at(100));
        let row = Row::new(Topology::Own, "made up", |_| Box::pin(async {})).loses_data();
        let broken = judged(&row, &referee);
        run.proof(broken == expected, format!("{what}: {broken:?}"));
    }
}

/// Readers overlap each other and no writer, and their tokens follow those of the writers only.
pub(crate) fn detects_overlaps_by_mode(run: &mut Run) {
    use Mode::{Exclusive, Shared};
    for (what, holds, expected) in [
        (
            "readers overlap",
            vec![
                (Exclusive, 1, 0, 10),
                (Shared, 3, 10, 60),
                (Shared, 2, 20, 40),
                (Shared, 3, 50, 70),
                (Exclusive, 4, 70, 80),
            ],
            &[][..],
        ),
        (
            "a reader overlaps a writer",
            vec![
                (Shared, 1, 0, 30),
                (Shared, 2, 5, 10),
                (Exclusive, 3, 20, 40),
            ],
            &["I1"],
        ),
        (
            "a writer overlaps a reader",
            vec![(Exclusive, 1, 0, 30), (Shared, 2, 20, 40)],
            &["I1"],
        ),
        (
            "writers overlap",
            vec![(Exclusive, 1, 0, 30), (Exclusive, 2, 20, 40)],
            &["I1"],
        ),
        (
            "a writer after two readers has the token of the first",
            vec![
                (Shared, 2, 0, 10),
                (Shared, 1, 5, 10),
                (Exclusive, 2, 20, 30),
            ],
            &["I4"],
        ),
        (
            "a reader has the token of the writer before",
            vec![(Exclusive, 2, 0, 10), (Shared, 2, 20, 30)],
            &["I4"],
        ),
    ] {
        let broken = broken_by(&holds);
        run.proof(broken == expected, format!("{what}: {broken:?}"));
    }
}

/// Permits overlap each other up to their limits, and no other hold. Their tokens follow those of the exclusive holds
/// only.
pub(crate) fn detects_permits_above_limit(run: &mut Run) {
    use Mode::{Exclusive, Permit, Shared};
    for (what, holds, expected) in [
        (
            "two permits and a larger limit",
            vec![
                ((Exclusive, 1, 0, 10), 0),
                ((Permit, 3, 10, 60), 2),
                ((Permit, 2, 20, 40), 2),
                ((Permit, 4, 30, 70), 3),
                ((Permit, 5, 60, 70), 2),
            ],
            &[][..],
        ),
        (
            "three permits below two",
            vec![
                ((Permit, 1, 0, 30), 2),
                ((Permit, 2, 5, 30), 2),
                ((Permit, 3, 20, 30), 2),
            ],
            &["S2"],
        ),
        (
            "a smaller limit beside larger ones",
            vec![
                ((Permit, 1, 0, 30), 3),
                ((Permit, 2, 5, 30), 3),
                ((Permit, 3, 20, 30), 2),
            ],
            &["S2"],
        ),
        (
            "a permit overlaps a reader",
            vec![((Shared, 1, 0, 30), 0), ((Permit, 2, 20, 40), 2)],
            &["I1"],
        ),
        (
            "a permit overlaps a writer",
            vec![((Permit, 1, 0, 30), 2), ((Exclusive, 2, 20, 40), 0)],
            &["I1"],
        ),
    ] {
        let broken = broken_below(&holds);
        run.proof(broken == expected, format!("{what}: {broken:?}"));
    }
}
