//! The cost of a killed waiter: the time from the release to the grant of the waiter behind it.

use std::thread::sleep;
use std::time::Duration;

use tokio::time::Instant;

use super::grid::MOST_ROUNDS;
use crate::bench::{Bench, turns};
use crate::child::Speaker;
use crate::contenders::Contender;
use crate::job::{Done, Job, Keys};
use crate::table::{Series, ratio};
use crate::target::{self, Target};

const SCENARIO: &str = "herd, the first waiter is killed: from the release to the next grant";
const CONTENDERS: [Contender; 2] = [Contender::Ours, Contender::RedissonFair];
/// The time between events: the holder starts, two waiters start, the first is killed, the release.
const APART: Duration = Duration::from_millis(500);
/// Shorter than the hold and each wait, so that a worker does one pair; long enough for a JVM to begin.
const ONE_PAIR: Duration = APART;
/// The longest delay of tower-lock, in milliseconds.
const MOST: f64 = 1_500.0;

/// The figures of one contender.
struct Measured {
    contender: Contender,
    /// The delays in milliseconds.
    delay: Series,
    /// Ends the measurement of this contender.
    failure: Option<String>,
}

pub(super) fn run(bench: &mut Bench) {
    let mut all = CONTENDERS.map(|contender| Measured {
        contender,
        delay: Series::default(),
        failure: None,
    });
    for round in 0..bench.rounds.min(MOST_ROUNDS) {
        for at in turns(round, all.len()) {
            all[at].measure(bench);
        }
    }
    let [ours, ..] = &all;
    for measured in &all {
        let (name, delay) = (measured.contender.name(), &measured.delay);
        let figure = match delay.is_empty() {
            true => String::new(),
            false => delay.text(1, "ms"),
        };
        let ratio = ratio(delay, &ours.delay, "tower-lock");
        bench
            .table
            .row(SCENARIO, name, figure, ratio, measured.note());
    }
}

impl Measured {
    fn measure(&mut self, bench: &mut Bench) {
        if self.failure.is_some() {
            return;
        }
        match delay(bench, self.contender) {
            Ok(delay) => self.delay.add(delay.as_secs_f64() * 1e3),
            Err(reason) => self.failure = Some(reason),
        }
    }

    fn note(&self) -> String {
        let failure = self.failure.clone().unwrap_or_default();
        if self.contender != Contender::Ours {
            return failure;
        }
        let longest = match self.failure {
            Some(_) => f64::INFINITY,
            None => self.delay.range().1,
        };
        let target = Target::at_most("longest delay in ms", longest, MOST, 0);
        target::note(&[target], failure)
    }
}

/// Starts a holder and two waiters, kills the first waiter, and returns the delay of the second.
fn delay(bench: &mut Bench, contender: Contender) -> Result<Duration, String> {
    let mut start = || start(bench, contender).map_err(|reason| format!("left out: {reason}"));
    let (mut holder, mut dying, mut next) = (start()?, start()?, start()?);
    let mut job = bench.job(Keys::Shared(1), 1, ONE_PAIR);
    job.hold = 4 * APART;
    say(&mut holder, &job)?;
    // The waiters release as soon as they are granted.
    job.hold = Duration::ZERO;
    for waiter in [&mut dying, &mut next] {
        sleep(APART);
        say(waiter, &job)?;
    }
    sleep(APART);
    drop(dying);
    holder.expect("done")?;
    let released = Instant::now();
    let granted = next.expect("done");
    let delay = released.elapsed();
    let no_grant = |reason| format!("no grant within {} s: {reason}", delay.as_secs());
    let done: Done = granted
        .map_err(no_grant)?
        .parse()
        .map_err(|error| format!("{error}"))?;
    match done.waits.longest() >= APART.as_secs_f64() {
        true => Ok(delay),
        false => Err("the next waiter was granted before the release".to_owned()),
    }
}

fn start(bench: &mut Bench, contender: Contender) -> Result<Speaker, String> {
    let mut worker = Speaker::start(contender.program(1, &bench.server.url())?)?;
    worker.expect("ready")?;
    // A JVM loads classes at its first lock.
    say(&mut worker, &bench.job(Keys::New, 1, contender.warm_up()))?;
    worker.expect("done")?;
    Ok(worker)
}

fn say(worker: &mut Speaker, job: &Job) -> Result<(), String> {
    let said = worker.say(&job.to_string());
    said.map_err(|error| format!("takes no job: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(contender: Contender, delays: &[f64], failure: Option<&str>) -> Measured {
        let mut delay = Series::default();
        delays.iter().for_each(|it| delay.add(*it));
        Measured {
            contender,
            delay,
            failure: failure.map(ToOwned::to_owned),
        }
    }

    #[test]
    fn longest_delay_meets_or_misses_target() {
        let note = |delays: &[_]| measured(Contender::Ours, delays, None).note();
        assert_eq!(note(&[0.5, 0.6, 1_500.0]), "");
        let missed = "**missed: longest delay in ms ≤ 1500**";
        assert_eq!(note(&[0.5, 0.6, 1_501.0]), missed);
    }

    #[test]
    fn missing_grant_misses_target() {
        let failure = Some("no grant within 30 s");
        let note = measured(Contender::Ours, &[0.5], failure).note();
        let missed = "**missed: longest delay in ms ≤ 1500**; no grant within 30 s";
        assert_eq!(note, missed);
        let others = measured(Contender::RedissonFair, &[], failure);
        assert_eq!(others.note(), "no grant within 30 s");
    }
}
