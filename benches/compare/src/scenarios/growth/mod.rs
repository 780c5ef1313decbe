//! What tower-lock costs as work grows: more locks in flight, more locks held, more processes, each beside Redis and at a
//! distance from it.

mod distance;
mod held;
mod in_flight;
mod processes;

use std::time::Duration;

use distance::Distance;
use plotters::style::RGBColor;

use crate::bench::{Bench, result};
use crate::cpu;
use crate::plot::{self, Line};
use crate::table::Series;

/// The times that the way to Redis and back takes beyond that on loopback.
const ROUND_TRIPS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(2)];

/// The whole takes minutes for each round.
const MOST_ROUNDS: usize = 3;

const COLORS: [RGBColor; 4] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

pub(crate) fn run(bench: &mut Bench) {
    let far = Distance::start(bench.server.port(), ROUND_TRIPS[1]);
    let urls = [bench.server.url(), far.url()];
    in_flight::run(bench, &urls);
    held::run(bench, &urls);
    processes::run(bench, &urls);
}

fn rounds(bench: &Bench) -> usize {
    bench.rounds.min(MOST_ROUNDS)
}

fn named(round_trip: Duration) -> String {
    format!("{} ms round trip", round_trip.as_millis())
}

/// What Redis has done since its start.
#[derive(Clone, Copy)]
struct Spent {
    /// The seconds of CPU.
    cpu: f64,
    /// The bytes that it received and sent.
    bytes: f64,
}

impl Spent {
    fn now(bench: &Bench) -> Self {
        let cpu = cpu::seconds(bench.server_process()).expect("a process that runs");
        Self {
            cpu,
            bytes: Self::bytes(bench),
        }
    }

    fn bytes(bench: &Bench) -> f64 {
        let stats = bench.server.cli(&["INFO", "stats"]);
        let field = |name: &str| -> f64 {
            let value = stats.lines().find_map(|line| line.strip_prefix(name));
            let value = value.and_then(|value| value.trim().parse().ok());
            value.expect("Redis counts its bytes")
        };
        field("total_net_input_bytes:") + field("total_net_output_bytes:")
    }

    /// Returns the microseconds and the bytes for each of so many grants.
    fn since(before: Self, bench: &Bench, grants: u64) -> [f64; 2] {
        // Before the other questions, which have bytes as well.
        let bytes = Self::bytes(bench) - before.bytes;
        let cpu = Self::now(bench).cpu - before.cpu;
        [cpu * 1e6, bytes].map(|all| all / grants.max(1) as f64)
    }
}

/// Returns the exponent with which a figure grows from one level to the next: 1 if it is proportional, 0 if it is constant.
fn slope(levels: &[usize], figures: &[Series], at: usize) -> String {
    let Some(last) = at.checked_sub(1) else {
        return String::new();
    };
    let grows = (figures[at].median() / figures[last].median()).ln();
    let slope = grows / (levels[at] as f64 / levels[last] as f64).ln();
    format!("slope {slope:.2}")
}

fn draw(file: &str, title: &str, axes: [&str; 2], levels: &[usize], lines: &[(String, &[Series])]) {
    let lines = lines.iter().zip(COLORS);
    let lines = lines.map(|((name, data), color)| Line::named(name.clone(), color, *data));
    let lines: Vec<_> = lines.collect();
    plot::growth(&result(file), title, axes, levels, &lines);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slope_is_exponent() {
        let levels = [1, 10, 100];
        let figures = [3.0, 30.0, 30.0].map(|figure| {
            let mut series = Series::default();
            series.add(figure);
            series
        });
        let slopes = [0, 1, 2].map(|at| slope(&levels, &figures, at));
        assert_eq!(slopes, ["", "slope 1.00", "slope 0.00"]);
    }
}
