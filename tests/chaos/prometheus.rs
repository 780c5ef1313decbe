//! A Prometheus server that scrapes the children, and evaluates the dashboard.

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

use crate::fault::{FAULTS, Fault};
use crate::support::process::free_port;

const DASHBOARD: &str = include_str!("../../ops/grafana.json");

pub(crate) fn program(variable: &str) -> Command {
    let path = std::env::var(variable);
    Command::new(path.unwrap_or_else(|_| panic!("`make ops` sets {variable}")))
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("the clock is right").as_secs()
}

/// Checks the names and the descriptions of all metrics in a scrape, those of the server included.
pub(crate) fn lint(scrape: &Path) {
    let scrape = std::fs::File::open(scrape).unwrap();
    let mut promtool = program("PROMTOOL");
    let status = promtool.args(["check", "metrics"]).stdin(scrape).status();
    assert!(status.unwrap().success(), "promtool rejects a metric");
}

/// It ends when dropped.
pub(crate) struct Prometheus {
    process: Child,
    port: u16,
    /// The name of each fault, and the port of its child.
    targets: Vec<(&'static str, u16)>,
    start: u64,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Prometheus {
    /// Starts a server that scrapes the children of all faults as soon as they run.
    pub(crate) fn start(folder: &Path) -> Self {
        let data = folder.join("data");
        drop(std::fs::remove_dir_all(&data));
        let targets: Vec<_> = FAULTS
            .iter()
            .map(|fault| (fault.name, free_port()))
            .collect();
        let mut text = "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n\
            scrape_configs:\n  - job_name: chaos\n    static_configs:\n"
            .to_owned();
        for (name, port) in &targets {
            let target = format!("targets: [\"127.0.0.1:{port}\"], labels: {{instance: {name}}}");
            writeln!(text, "      - {{{target}}}").unwrap();
        }
        let configuration = folder.join("prometheus.yml");
        std::fs::write(&configuration, text).unwrap();
        let port = free_port();
        let mut process = program("PROMETHEUS");
        process.arg(format!("--config.file={}", configuration.display()));
        process.arg(format!("--storage.tsdb.path={}", data.display()));
        process.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let process = process.arg("--log.level=error").spawn().unwrap();
        let server = Self {
            process,
            port,
            targets,
            start: now(),
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

    pub(crate) fn port_of(&self, fault: &Fault) -> u16 {
        let mut targets = self.targets.iter();
        let target = targets.find(|(name, _)| *name == fault.name);
        target.expect("all faults are targets").1
    }

    /// Expects that each child was scraped, and that each expression of the dashboard returns data.
    pub(crate) fn expect_data_for_each_panel(&self) {
        for (name, _) in &self.targets {
            let scraped = format!("up{{instance=\"{name}\"}} == 1");
            assert!(self.has_data(&scraped), "{name} was not scraped");
        }
        let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
        let mut empty = Vec::new();
        let mut count = 0;
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expression = target["expr"].as_str().unwrap();
                // A process has no such metrics: they are from the exporter of a PostgreSQL server.
                if expression.contains("pg_stat_") {
                    continue;
                }
                count += 1;
                if !self.has_data(expression) {
                    empty.push(expression);
                }
            }
        }
        assert!(empty.is_empty(), "no data: {empty:#?}");
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            if let Some(query) = variable["definition"].as_str() {
                assert!(self.has_values(query), "no values: {query}");
            }
        }
        println!("{count} expressions of the dashboard return data");
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
        let (start, end) = (self.start.to_string(), now().to_string());
        let data = self.query(
            "query_range",
            &[
                ("query", &filled),
                ("start", &start),
                ("end", &end),
                ("step", "1"),
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
