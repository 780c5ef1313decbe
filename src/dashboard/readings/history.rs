//! The past of the plots: 15 minutes by seconds, and a day by minutes.

use std::collections::VecDeque;

use serde_json::{Value, json};

use super::figures::{Figures, rounded};

const SECONDS: usize = 900;
const MINUTES: usize = 1440;

#[derive(Debug, Clone, Copy)]
pub(in crate::dashboard) enum Range {
    Seconds,
    Minutes,
}

/// The figures of one second or one minute.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    /// Milliseconds since 1970.
    at: u64,
    held: u32,
    waiting: u32,
    grants: f32,
    handoffs: f32,
    rejected: f32,
    lost: f32,
    /// The 50th and the 99th percentile in milliseconds, or not a number if there was no event.
    wait: [f32; 2],
    hold: [f32; 2],
}

/// Two rings of points.
#[derive(Debug, Default)]
pub(in crate::dashboard) struct History {
    seconds: VecDeque<Point>,
    minutes: VecDeque<Point>,
}

impl Point {
    pub(super) fn new(at: u64, held: usize, waiting: usize, figures: &Figures) -> Self {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let time = |time: Option<f64>| time.map_or(f32::NAN, |time| time as f32);
        let (wait, hold) = (&figures.wait, &figures.hold);
        Self {
            at,
            held: count(held),
            waiting: count(waiting),
            grants: figures.grants as f32,
            handoffs: figures.handoffs as f32,
            rejected: figures.rejected as f32,
            lost: figures.lost as f32,
            wait: [time(wait.p50), time(wait.p99)],
            hold: [time(hold.p50), time(hold.p99)],
        }
    }
}

impl History {
    pub(super) fn push(&mut self, range: Range, point: Point) {
        let (ring, size) = match range {
            Range::Seconds => (&mut self.seconds, SECONDS),
            Range::Minutes => (&mut self.minutes, MINUTES),
        };
        if ring.len() == size {
            ring.pop_front();
        }
        ring.push_back(point);
    }

    /// Returns one list per figure.
    pub(in crate::dashboard) fn columns(&self, range: Range) -> Value {
        let points = match range {
            Range::Seconds => &self.seconds,
            Range::Minutes => &self.minutes,
        };
        let counts = |figure: fn(&Point) -> u64| points.iter().map(figure).collect::<Vec<_>>();
        // JSON has `null` for what is not a number.
        let column = |figure: fn(&Point) -> f32| {
            let figures = points.iter().map(|point| rounded(figure(point).into()));
            figures.collect::<Vec<_>>()
        };
        json!({
            "at": counts(|point| point.at),
            "held": counts(|point| point.held.into()),
            "waiting": counts(|point| point.waiting.into()),
            "grants": column(|point| point.grants),
            "handoffs": column(|point| point.handoffs),
            "rejected": column(|point| point.rejected),
            "lost": column(|point| point.lost),
            "wait_p50": column(|point| point.wait[0]),
            "wait_p99": column(|point| point.wait[1]),
            "hold_p50": column(|point| point.hold[0]),
            "hold_p99": column(|point| point.hold[1]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_bounded() {
        let mut history = History::default();
        for at in 0..10_000 {
            for range in [Range::Seconds, Range::Minutes] {
                history.push(range, Point::new(at, 1, 2, &Figures::default()));
            }
        }
        let seconds = history.columns(Range::Seconds);
        assert_eq!(seconds["at"].as_array().map(Vec::len), Some(SECONDS));
        assert_eq!(seconds["at"][0], 10_000 - SECONDS as u64);
        assert_eq!(seconds["wait_p99"][0], Value::Null);
        let minutes = history.columns(Range::Minutes);
        assert_eq!(minutes["held"].as_array().map(Vec::len), Some(MINUTES));
        let bytes = (SECONDS + MINUTES) * size_of::<Point>();
        assert!(bytes < 300 * 1024, "{bytes}");
    }
}
