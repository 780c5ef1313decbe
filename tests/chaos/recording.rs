//! The scrapes of one run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// The values by series, as the exporter renders them.
pub(crate) type Scrape = BTreeMap<String, String>;

#[derive(Default)]
pub(crate) struct Recording(Vec<Scrape>);

impl Recording {
    pub(crate) fn add(&mut self, rendered: &str) -> &Scrape {
        let lines = rendered.lines();
        let samples = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = samples.map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            (series.to_owned(), value.to_owned())
        });
        self.0.push(samples.collect());
        self.0.last().expect("it was just added")
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the longest delay of the watchdog.
    pub(crate) fn longest_lag(&self) -> Duration {
        let lags = self
            .0
            .iter()
            .map(|scrape| &scrape["tower_lock_watchdog_lag_seconds"]);
        let lags = lags.map(|lag| Duration::from_secs_f64(lag.parse().expect("a number")));
        lags.max().unwrap_or_default()
    }

    /// Returns each series with further labels, and its values by the number of their scrape.
    pub(crate) fn series(&self, labels: &str) -> BTreeMap<String, Vec<(usize, &str)>> {
        let mut all = BTreeMap::<String, Vec<_>>::new();
        for (at, scrape) in self.0.iter().enumerate() {
            for (series, value) in scrape {
                let series = match series.split_once('{') {
                    Some((name, rest)) => format!("{name}{{{labels},{rest}"),
                    None => format!("{series}{{{labels}}}"),
                };
                all.entry(series).or_default().push((at, &**value));
            }
        }
        all
    }

    pub(crate) fn write(&self, path: &Path) {
        let mut text = String::new();
        for scrape in &self.0 {
            for (series, value) in scrape {
                writeln!(text, "{series} {value}").expect("text");
            }
            text.push_str("# end\n");
        }
        std::fs::write(path, text).expect("the file can be written");
    }

    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).expect("the run has written it");
        let mut recording = Self::default();
        for scrape in text.split_terminator("# end\n") {
            recording.add(scrape);
        }
        recording
    }
}
