//! The requests to a worker and its replies, one line each, so that a worker can be written in any
//! language.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::waits::Waits;

/// The keys to lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// A new key per pair, so that no key is contended or reused before its release.
    New,
    /// A key for each task of a process, which comes back with each pair. All processes have the same keys.
    Own,
    /// A number of keys for all tasks. The n-th key is acquired 1/n as often as the first.
    Shared(usize),
}

/// How the clients lock the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

/// A job: a number of clients lock, hold and unlock concurrently until the window ends.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) keys: Keys,
    /// The prefix of the keys, different for each job.
    pub(crate) name: String,
    pub(crate) in_flight: usize,
    pub(crate) window: Duration,
    /// How long a client sleeps while it holds the lock. Zero means no sleep.
    pub(crate) hold: Duration,
    /// The longest time that a client adds to its hold. Each hold adds a random part of it.
    pub(crate) spread: Duration,
    /// How long a client sleeps after each release.
    pub(crate) pause: Duration,
    pub(crate) mode: Mode,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.keys {
            Keys::New => write!(f, "new")?,
            Keys::Own => write!(f, "own")?,
            Keys::Shared(keys) => write!(f, "{keys}")?,
        }
        let (name, in_flight) = (&self.name, self.in_flight);
        let millis = [self.window, self.hold, self.spread, self.pause].map(|it| it.as_millis());
        let [window, hold, spread, pause] = millis;
        let mode = match self.mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        };
        write!(
            f,
            " {name} {in_flight} {window} {hold} {spread} {pause} {mode}"
        )
    }
}

impl FromStr for Job {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let words: Vec<_> = line.split_whitespace().collect();
        let [keys, name, in_flight, window, hold, spread, pause, mode] = words[..] else {
            let job = "keys, name, in flight, window, hold, spread and pause in ms, mode";
            return Err(format!("a job is: {job}").into());
        };
        Ok(Self {
            keys: match keys {
                "new" => Keys::New,
                "own" => Keys::Own,
                number => Keys::Shared(number.parse()?),
            },
            name: name.to_owned(),
            in_flight: in_flight.parse()?,
            window: Duration::from_millis(window.parse()?),
            hold: Duration::from_millis(hold.parse()?),
            spread: Duration::from_millis(spread.parse()?),
            pause: Duration::from_millis(pause.parse()?),
            mode: match mode {
                "exclusive" => Mode::Exclusive,
                "shared" => Mode::Shared,
                _ => return Err("no such mode".into()),
            },
        })
    }
}

/// The result of a job.
pub(crate) struct Done {
    /// The number of locks that were acquired and released.
    pub(crate) pairs: u64,
    /// The number of grants within the window.
    pub(crate) in_window: u64,
    /// The grants within the window of the client with the fewest.
    pub(crate) least: u64,
    /// The time until the server has confirmed the last release.
    pub(crate) seconds: f64,
    /// The time from each request for a lock to its grant.
    pub(crate) waits: Waits,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pairs,
            in_window,
            least,
            seconds,
            waits,
        } = self;
        let waits = waits.to_text();
        write!(f, "{pairs} {in_window} {least} {seconds} {waits}")
    }
}

impl FromStr for Done {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let words: Vec<_> = line.split_whitespace().collect();
        let [pairs, in_window, least, seconds, waits] = words[..] else {
            return Err(line.into());
        };
        Ok(Self {
            pairs: pairs.parse()?,
            in_window: in_window.parse()?,
            least: least.parse()?,
            seconds: seconds.parse()?,
            waits: Waits::from_text(waits)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_job_has_same_text() {
        for text in [
            "new a 64 500 0 0 0 exclusive",
            "own a 64 500 0 0 0 exclusive",
            "3 b 2 4000 25 50 7 shared",
        ] {
            let job: Job = text.parse().expect("a job");
            assert_eq!(job.to_string(), text);
        }
        for text in ["new a 64 500 0 0 0", "new a 64 500 0 0 0 permit"] {
            assert!(text.parse::<Job>().is_err());
        }
    }
}
