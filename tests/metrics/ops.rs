//! The dashboard and the alerts in `ops/`: they use the metrics that the crate has, and no others.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

const DASHBOARD: &str = include_str!("../../ops/grafana.json");
const ALERTS: &str = include_str!("../../ops/alerts.yml");
const CASES: &str = include_str!("../../ops/alerts.test.yml");
const GUIDE: &str = include_str!("../../src/guide/operations.rs");
const INCIDENTS: &str = include_str!("../../src/guide/incidents.rs");
const FAMILIES: &str = include_str!("../../src/observe/metrics/families.rs");

/// Returns the names of metrics in a text, without the suffixes of histograms.
fn metrics(text: &str) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("tower_lock_") {
        let name = &text[at..];
        let end = name.find(|it: char| !(it.is_ascii_lowercase() || it == '_'));
        let name = &name[..end.unwrap_or(name.len())];
        let base = ["_bucket", "_count", "_sum"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix));
        found.insert(base.unwrap_or(name));
    }
    found
}

/// Returns the expressions of the dashboard.
fn expressions() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let expressions = targets.flatten().map(|target| target["expr"].as_str());
    expressions
        .map(|it| it.expect("an expression").to_owned())
        .collect()
}

fn names(text: &str) -> BTreeSet<&str> {
    let lines = text
        .lines()
        .map(|line| line.trim().trim_start_matches("- "));
    lines
        .filter_map(|line| {
            line.strip_prefix("alert: ")
                .or(line.strip_prefix("alertname: "))
        })
        .collect()
}

#[test]
fn guide_lists_each_metric() {
    let rows = GUIDE
        .lines()
        .filter(|line| line.starts_with("//! | `tower_lock_"));
    let table: String = rows.collect();
    assert_eq!(metrics(&table), metrics(FAMILIES));
}

#[test]
fn dashboard_shows_each_metric() {
    assert_eq!(metrics(&expressions().join("\n")), metrics(FAMILIES));
}

#[test]
fn alerts_use_metrics_of_this_crate() {
    let unknown: Vec<_> = metrics(ALERTS)
        .difference(&metrics(FAMILIES))
        .copied()
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn each_alert_has_case_with_and_without_it() {
    let alerts = names(ALERTS);
    assert_eq!(alerts.len(), 14);
    assert_eq!(names(CASES), alerts);
    for alert in alerts {
        let name = format!("alertname: {alert}\n");
        let cases = CASES.split(&name).skip(1);
        let silent = cases.map(|rest| rest.trim_start().starts_with("exp_alerts: []"));
        let silent: BTreeSet<_> = silent.collect();
        assert_eq!(silent, BTreeSet::from([false, true]), "{alert}");
    }
}

/// Returns `true` if the text states that it aggregates over processes.
fn is_of_all(text: &str) -> bool {
    text.contains("all processes")
}

#[test]
fn panels_name_compared_processes() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    for panel in dashboard["panels"].as_array().expect("panels") {
        let is_of_all = is_of_all(panel["description"].as_str().unwrap_or_default());
        for target in panel["targets"].as_array().into_iter().flatten() {
            let text = |name| target[name].as_str().expect("text");
            let (expression, legend) = (text("expr"), text("legendFormat"));
            let is_grouped = expression.contains("by (instance");
            let is_named = legend.contains("{{instance}}");
            assert_eq!(is_grouped, is_named, "{legend}: {expression}");
            assert!(is_named || is_of_all, "{}: {expression}", panel["title"]);
        }
    }
}

#[test]
fn alerts_name_concerned_process() {
    for alert in ALERTS.split("- alert: ").skip(1) {
        let (expression, rest) = alert.split_once("labels:").expect("labels");
        let (summary, description) = rest.split_once("description:").expect("a description");
        let aggregates = expression.split(" by (").skip(1);
        let is_kept = aggregates.into_iter().all(|it| {
            it.split(')')
                .next()
                .is_some_and(|it| it.contains("instance"))
        });
        let is_named = summary.contains("{{ $labels.instance }}");
        assert_eq!(is_kept, is_named, "{alert}");
        assert!(is_named || is_of_all(description), "{alert}");
    }
}

/// An alert with a bound that the histograms lack would never fire.
#[test]
fn alerts_use_bounds_of_histograms() {
    let mut bounds = 0;
    for rest in ALERTS.split("le=\"").skip(1) {
        let (bound, _) = rest.split_once('"').expect("a bound");
        let bound: Option<f64> = bound.parse().ok();
        let is_known = tower_lock::metrics::BUCKETS
            .iter()
            .any(|it| Some(*it) == bound);
        assert!(is_known || bound == Some(f64::INFINITY), "{bound:?}");
        bounds += 1;
    }
    assert!(bounds > 0);
}

#[test]
fn guide_explains_each_alert() {
    let rows = INCIDENTS.lines().filter_map(|line| {
        let (name, _) = line.strip_prefix("//! | `")?.split_once("` |")?;
        Some(name)
    });
    assert_eq!(rows.collect::<BTreeSet<_>>(), names(ALERTS));
}

#[test]
fn guide_has_cause_of_each_alert() {
    let (_, causes) = INCIDENTS.split_once("//! | cause |").expect("a table");
    let (causes, _) = causes.split_once("//! # Alerts").expect("a section");
    let absent: Vec<_> = names(ALERTS)
        .into_iter()
        .filter(|alert| !causes.contains(&format!("`{alert}`")))
        .collect();
    assert!(absent.is_empty(), "{absent:?}");
}

/// Writes each expression of the dashboard as a recording rule, which `make ops` checks.
#[test]
fn expressions_are_written_as_rules() {
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (at, expression) in expressions().iter().enumerate() {
        let expression = expression.replace("$__rate_interval", "5m");
        let expression = serde_json::to_string(&expression).expect("text");
        writeln!(
            rules,
            "      - record: dashboard:{at}\n        expr: {expression}"
        )
        .expect("text");
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard.yml");
    std::fs::write(path, rules).expect("the file can be written");
}
