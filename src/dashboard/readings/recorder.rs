//! The readings of each second, and of each minute.

use std::time::{Duration, SystemTime};

use super::backend::{Incidents, Servers};
use super::figures::{Figures, Reading};
use super::frame::millis;
use super::history::{Point, Range};
use crate::LockManager;
use crate::lock::{Order, Walk};
use crate::observe::read_servers;

/// Without a page, the lanes are read only in every fifth second.
const UNWATCHED: usize = 5;
const MINUTE: usize = 60;

/// Between two ticks. More is a pause of the process.
const LONGEST: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Recorder {
    /// The time of the last tick. Unlike the clock of tokio, it includes suspends.
    last: SystemTime,
    /// The seconds so far.
    seconds: usize,
    /// Whether the lanes were read in this second.
    walked: bool,
    held: usize,
    waiting: usize,
    /// The most of them in this minute.
    most: (usize, usize),
    pub(super) reading: Reading,
    minute: Reading,
    pub(super) figures: Figures,
    pub(super) servers: Servers,
}

impl Recorder {
    pub(super) fn new(locks: &LockManager, incidents: Incidents) -> Self {
        let mut servers = Servers::new(incidents);
        servers.update(millis(SystemTime::now()), read_servers());
        Self {
            last: SystemTime::now(),
            seconds: 0,
            walked: false,
            held: 0,
            waiting: 0,
            most: (0, 0),
            reading: Reading::of(locks),
            minute: Reading::of(locks),
            figures: Figures::default(),
            servers,
        }
    }

    /// Reads the counts of the last second. Returns its point, and that of a minute that has ended.
    pub(super) async fn tick(
        &mut self,
        locks: &LockManager,
    ) -> impl Iterator<Item = (Range, Point)> + use<> {
        let now = SystemTime::now();
        let at = millis(now);
        let since = now.duration_since(self.last).unwrap_or_default();
        self.last = now;
        if since > LONGEST {
            self.servers.paused(at, since);
        }
        let reading = Reading::of(locks);
        self.figures = reading.since(&self.reading);
        self.reading = reading;
        self.servers.update(at, read_servers());
        let is_watched = std::mem::take(&mut self.walked);
        if !is_watched && self.seconds.is_multiple_of(UNWATCHED) {
            let walk = locks.walk(Order::Waiters, 0).await;
            self.add(&walk);
        }
        self.seconds += 1;
        let second = Point::new(at, self.held, self.waiting, &self.figures);
        let minute = self.seconds.is_multiple_of(MINUTE).then(|| {
            let reading = Reading::of(locks);
            let figures = reading.since(&self.minute);
            self.minute = reading;
            locks.hot_keys().halve();
            let (held, waiting) = std::mem::take(&mut self.most);
            (Range::Minutes, Point::new(at, held, waiting, &figures))
        });
        [Some((Range::Seconds, second)), minute]
            .into_iter()
            .flatten()
    }

    /// Records a walk for a frame.
    pub(super) fn walked(&mut self, walk: &Walk) {
        self.walked = true;
        self.add(walk);
    }

    fn add(&mut self, walk: &Walk) {
        self.held = walk.counts.snapshot.held;
        self.waiting = walk.counts.snapshot.waiting;
        let (held, waiting) = self.most;
        self.most = (
            held.max(walk.counts.snapshot.held),
            waiting.max(walk.counts.snapshot.waiting),
        );
    }

    /// Returns the time of the last tick, which its point in the history has too.
    pub(super) fn at(&self) -> u64 {
        millis(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn late_tick_is_incident() {
        let locks = LockManager::in_memory();
        let mut recorder = Recorder::new(&locks, Incidents::default());
        // Other tests of this program have servers whose incidents are listed, too.
        let pauses = |recorder: &Recorder| {
            let incidents = recorder.servers.incidents();
            let texts = incidents.as_array().into_iter().flatten();
            let texts = texts.filter_map(|it| it["text"].as_str().map(str::to_owned));
            let pauses: Vec<_> = texts.filter(|it| it.starts_with("this process")).collect();
            pauses
        };
        recorder.tick(&locks).await.for_each(drop);
        assert_eq!(pauses(&recorder), [""; 0]);
        recorder.last -= Duration::from_secs(14);
        recorder.tick(&locks).await.for_each(drop);
        let [pause] = &pauses(&recorder)[..] else {
            panic!("one pause");
        };
        assert!(pause.starts_with("this process paused for 14."), "{pause}");
    }
}
