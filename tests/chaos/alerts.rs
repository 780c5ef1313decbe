//! Evaluates the alerts with promtool.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use crate::fault::{Fault, WATCHDOG_LATE};
use crate::prometheus::program;
use crate::recording::Recording;

/// The time between two scrapes in the recorded series, in seconds.
const PERIOD: usize = 15;
const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ops/alerts.yml");

/// The threshold of the alert for a late watchdog.
const LATE: Duration = Duration::from_secs(1);

/// Returns the query of the alerts that fired, except one.
fn fired(except: &str) -> String {
    format!(
        "group by (alertname) (last_over_time(ALERTS{{alertstate=\"firing\",alertname!=\"{except}\"}}[1d]))"
    )
}

/// Expects that the alerts of each fault fire, and no others.
///
/// The watchdog's alert must also fire if its gauge was above the threshold, which the child permits only if the machine
/// delayed all its tasks.
pub(crate) fn expect(folder: &Path, runs: &[(&Fault, Recording)]) {
    let mut text = format!("rule_files: [{ALERTS}]\nevaluation_interval: {PERIOD}s\ntests:\n");
    for (fault, recording) in runs {
        let labels = format!("job=\"chaos\",instance=\"{}\"", fault.name);
        writeln!(text, "  - name: {}", fault.name).unwrap();
        writeln!(text, "    interval: {PERIOD}s\n    input_series:").unwrap();
        for (series, values) in recording.series(&labels) {
            let mut values = values.into_iter().peekable();
            let values = (0..recording.len()).map(|at| {
                let value = values.next_if(|(scrape, _)| *scrape == at);
                value.map_or("_", |(_, value)| value)
            });
            let values: Vec<_> = values.collect();
            writeln!(text, "      - series: '{series}'").unwrap();
            writeln!(text, "        values: '{}'", values.join(" ")).unwrap();
        }
        let end = recording.len() * PERIOD;
        let fired = fired(fault.may_fire());
        writeln!(
            text,
            "    promql_expr_test:\n      - expr: {fired}\n        eval_time: {end}s\n        exp_samples:"
        )
        .unwrap();
        let is_late = recording.longest_lag() > LATE && !fault.alerts.contains(&WATCHDOG_LATE);
        for alert in fault.alerts.iter().chain(is_late.then_some(&WATCHDOG_LATE)) {
            writeln!(
                text,
                "          - labels: '{{alertname=\"{alert}\"}}'\n            value: 1"
            )
            .unwrap();
        }
    }
    let path = folder.join("alerts.test.yml");
    std::fs::write(&path, text).unwrap();
    let status = program("PROMTOOL")
        .args(["test", "rules"])
        .arg(path)
        .status();
    assert!(status.unwrap().success(), "other alerts fire than expected");
}
