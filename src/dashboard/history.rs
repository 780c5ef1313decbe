//! The past of the plots: 15 minutes by seconds, and a day by minutes.

use std::collections::VecDeque;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::frame::millis;
use crate::lock::Walk;

const SECONDS: usize = 900;
const MINUTES: usize = 1440;

#[derive(Debug, Clone, Copy)]
pub(super) enum Range {
    Seconds,
    Minutes,
}

/// The figures of one second or one minute.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Point {
    /// Milliseconds since 1970.
    at: u64,
    held: u32,
    waiting: u32,
}

/// Two rings of points.
#[derive(Debug, Default)]
pub(super) struct History {
    seconds: VecDeque<Point>,
    minutes: VecDeque<Point>,
}

impl Point {
    pub(super) fn of(at: SystemTime, walk: &Walk) -> Self {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            at: millis(at),
            held: count(walk.held),
            waiting: count(walk.waiting),
        }
    }
}

impl History {
    pub(super) fn push(&mut self, point: Point) {
        add(&mut self.seconds, SECONDS, point);
    }

    /// Returns one list per figure.
    pub(super) fn columns(&self, range: Range) -> Value {
        let points = match range {
            Range::Seconds => &self.seconds,
            Range::Minutes => &self.minutes,
        };
        let column = |figure: fn(&Point) -> u64| points.iter().map(figure).collect::<Vec<_>>();
        json!({
            "at": column(|point| point.at),
            "held": column(|point| point.held.into()),
            "waiting": column(|point| point.waiting.into()),
        })
    }
}

fn add(ring: &mut VecDeque<Point>, size: usize, point: Point) {
    if ring.len() == size {
        ring.pop_front();
    }
    ring.push_back(point);
}
