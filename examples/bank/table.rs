//! The results as a table and as one sentence.

use crate::play::Seen;

pub(crate) fn render(seen: &[Seen]) -> String {
    let mut table = line(
        "route",
        ["requests", "lost or torn", "busy", "p50", "p99"].map(String::from),
    );
    for seen in seen {
        let millis = |percent| format!("{:.1} ms", seen.percentile(percent).as_secs_f64() * 1e3);
        let cells = [
            seen.latencies.len().to_string(),
            format!("{} of {}", seen.wrong, seen.confirmed),
            seen.busy.to_string(),
            millis(50),
            millis(99),
        ];
        table += &line(seen.route.name(), cells);
    }
    table
}

fn line(route: &str, [requests, lost, busy, p50, p99]: [String; 5]) -> String {
    format!("{route:<33}{requests:>9}{lost:>15}{busy:>6}{p50:>11}{p99:>11}\n")
}

/// Returns a sentence on the lost updates and torn statements, or an error if a locked route has one.
pub(crate) fn verdict(seen: &[Seen]) -> Result<String, String> {
    let wrong = |locked: bool| -> u64 {
        let of_kind = seen.iter().filter(|seen| seen.route.is_locked() == locked);
        of_kind.map(|seen| seen.wrong).sum()
    };
    match (wrong(true), wrong(false)) {
        (0, 0) => {
            Ok("Nothing went wrong, but the unlocked routes were lucky this time.".to_owned())
        }
        (0, _) => {
            Ok("Without locks updates were lost and statements torn; with locks, none.".to_owned())
        }
        (wrong, _) => Err(format!("{wrong} went wrong under locks: this is a bug")),
    }
}
