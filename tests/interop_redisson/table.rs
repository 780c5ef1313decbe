//! The results, case by case.

use std::fmt;
use std::time::Duration;

/// The result of one case with one version.
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) version: &'static str,
    pub(crate) place: &'static str,
    pub(crate) direction: &'static str,
    pub(crate) result: String,
}

/// The durations of many rounds.
#[derive(Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn add(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the quantile `of` of the durations.
    pub(crate) fn at(&self, of: f64) -> Duration {
        let mut all = self.0.clone();
        all.sort_unstable();
        let index = (all.len() as f64 * of).ceil() as usize;
        all[index.clamp(1, all.len()) - 1]
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, p99, max] = [0.5, 0.99, 1.0].map(|of| self.at(of).as_secs_f64() * 1e3);
        let rounds = self.0.len();
        write!(
            f,
            "{rounds} rounds: median {median:.1} ms, p99 {p99:.1} ms, longest {max:.1} ms"
        )
    }
}

pub(crate) fn print(rows: &[Row]) {
    println!("\n| case | Redisson | on | direction | seen |\n|---|---|---|---|---|");
    for Row {
        case,
        version,
        place,
        direction,
        result,
    } in rows
    {
        println!("| {case} | {version} | {place} | {direction} | {result} |");
    }
}
