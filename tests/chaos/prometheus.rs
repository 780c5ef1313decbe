//! Evaluates the alerts with promtool, and the dashboard with a Prometheus server.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::time::Instant;

use crate::fault::Fault;
use crate::recording::Recording;
use crate::support::process::free_port;

/// The time between two scrapes in the recorded series, in seconds.
const PERIOD: usize = 15;
const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/ops/alerts.yml");
const DASHBOARD: &str = include_str!("../../ops/grafana.json");

type Run<'a> = (&'a Fault, Recording);

fn program(variable: &str) -> Command {
    let path = std::env::var(variable);
    Command::new(path.unwrap_or_else(|_| panic!("`make ops` sets {variable}")))
}

fn labels(fault: &Fault) -> String {
    format!("job=\"chaos\",instance=\"{}\"", fault.name)
}

/// The alerts that fired. A busy machine delays the watchdog as well, so that its alert is not among them.
const FIRED: &str = concat!(
    "group by (alertname) (last_over_time(ALERTS{alertstate=\"firing\",",
    "alertname!=\"TowerLockWatchdogLate\"}[1d]))"
);

/// Expects that the alerts of each fault fire, and no others.
pub(crate) fn expect_alerts(folder: &Path, runs: &[Run<'_>]) {
    let mut text = format!("rule_files: [{ALERTS}]\nevaluation_interval: {PERIOD}s\ntests:\n");
    for (fault, recording) in runs {
        writeln!(text, "  - name: {}", fault.name).unwrap();
        writeln!(text, "    interval: {PERIOD}s\n    input_series:").unwrap();
        for (series, values) in recording.series(&labels(fault)) {
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
        writeln!(
            text,
            "    promql_expr_test:\n      - expr: {FIRED}\n        eval_time: {end}s\n        exp_samples:"
        )
        .unwrap();
        for alert in fault.alerts {
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

/// Expects that each expression of the dashboard returns data.
pub(crate) fn expect_data_for_each_panel(folder: &Path, runs: &[Run<'_>]) {
    let server = Server::start(folder, runs);
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut empty = Vec::new();
    let mut count = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            count += 1;
            if !server.has_data(expression) {
                empty.push(expression);
            }
        }
    }
    assert!(empty.is_empty(), "no data: {empty:#?}");
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["definition"].as_str() {
            assert!(server.has_values(query), "no values: {query}");
        }
    }
    println!("{count} expressions of the dashboard return data");
}

/// A Prometheus server with the recorded series. It ends when dropped.
struct Server {
    process: Child,
    port: u16,
    start: usize,
    end: usize,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Server {
    fn start(folder: &Path, runs: &[Run<'_>]) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let longest = runs.iter().map(|(_, recording)| recording.len()).max();
        let end = usize::try_from(now.as_secs()).unwrap();
        let start = end - longest.unwrap() * PERIOD;
        let data = folder.join("data");
        drop(std::fs::remove_dir_all(&data));
        let path = folder.join("series.txt");
        std::fs::write(&path, open_metrics(runs, start)).unwrap();
        let mut create = program("PROMTOOL");
        create.args(["tsdb", "create-blocks-from", "--quiet", "openmetrics"]);
        let status = create.arg(path).arg(&data).status();
        assert!(status.unwrap().success(), "the series cannot be stored");

        let configuration = folder.join("prometheus.yml");
        std::fs::write(&configuration, "global: {}\n").unwrap();
        let port = free_port();
        let mut process = program("PROMETHEUS");
        process.arg(format!("--config.file={}", configuration.display()));
        process.arg(format!("--storage.tsdb.path={}", data.display()));
        process.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let process = process.arg("--log.level=error").spawn().unwrap();
        let server = Self {
            process,
            port,
            start,
            end,
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while server
            .get("/-/ready")
            .is_none_or(|(status, _)| status != 200)
        {
            assert!(Instant::now() < deadline, "Prometheus does not start");
            thread::sleep(Duration::from_millis(50));
        }
        server
    }

    /// Returns the status and the body of a response.
    fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        let (head, body) = response.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }

    fn query(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let parameters = parameters.iter().map(|(name, value)| {
            let value = utf8_percent_encode(value, NON_ALPHANUMERIC);
            format!("{name}={value}")
        });
        let parameters: Vec<_> = parameters.collect();
        let path = format!("/api/v1/{path}?{}", parameters.join("&"));
        let (status, body) = self.get(&path).expect("a response");
        assert_eq!(status, 200, "{path}: {body}");
        let reply: Value = serde_json::from_str(&body).expect("JSON");
        reply["data"].clone()
    }

    /// Returns `true` if the expression has a value that is a number.
    fn has_data(&self, expression: &str) -> bool {
        let variables = [
            ("$__rate_interval", "1m"),
            ("$job", ".*"),
            ("$instance", ".*"),
            ("$layer", ".*"),
        ];
        let filled = variables
            .iter()
            .fold(expression.to_owned(), |text, (name, value)| {
                text.replace(name, value)
            });
        let (start, end) = (self.start.to_string(), self.end.to_string());
        let step = PERIOD.to_string();
        let data = self.query(
            "query_range",
            &[
                ("query", &filled),
                ("start", &start),
                ("end", &end),
                ("step", &step),
            ],
        );
        let series = data["result"].as_array().expect("series").iter();
        let mut values = series.flat_map(|series| series["values"].as_array().expect("values"));
        values.any(|value| value[1].as_str().is_some_and(|value| value != "NaN"))
    }

    /// Returns `true` if a variable, `label_values(series, label)`, has values.
    fn has_values(&self, query: &str) -> bool {
        let arguments = query.strip_prefix("label_values(").expect(query);
        let arguments = arguments.strip_suffix(')').expect(query);
        let (series, label) = arguments.rsplit_once(", ").expect(query);
        let series = series.replace("$job", ".*");
        let path = format!("label/{label}/values");
        let values = self.query(&path, &[("match[]", &series)]);
        values.as_array().is_some_and(|values| !values.is_empty())
    }
}

/// Returns all series in the format that `promtool` stores, in the order of their names.
fn open_metrics(runs: &[Run<'_>], start: usize) -> String {
    let mut all = BTreeMap::new();
    for (fault, recording) in runs {
        all.extend(recording.series(&labels(fault)));
    }
    let mut text = String::new();
    for (series, values) in all {
        for (at, value) in values {
            writeln!(text, "{series} {value} {}", start + at * PERIOD).unwrap();
        }
    }
    text + "# EOF\n"
}
