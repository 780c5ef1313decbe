//! What a worker is asked, and what it answers: a line each, so that a program in any language can
//! be a worker.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::waits::Waits;

/// What there is to lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// A new key for each pair: nothing is ever contended, nor taken back before it was released.
    New,
    /// So many keys that everybody shares, the n-th wanted 1/n as often as the first.
    Shared(usize),
}

/// Lock, nothing, unlock, by so many at a time, until the window is over.
pub(crate) struct Job {
    pub(crate) keys: Keys,
    /// What the keys start with: another word for each job.
    pub(crate) name: String,
    pub(crate) in_flight: usize,
    pub(crate) window: Duration,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, in_flight, millis) = (&self.name, self.in_flight, self.window.as_millis());
        match self.keys {
            Keys::New => write!(f, "new {name} {in_flight} {millis}"),
            Keys::Shared(keys) => write!(f, "{keys} {name} {in_flight} {millis}"),
        }
    }
}

impl FromStr for Job {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let words: Vec<_> = line.split_whitespace().collect();
        let [keys, name, in_flight, millis] = words[..] else {
            return Err("a job is: keys, name, in flight, milliseconds".into());
        };
        Ok(Self {
            keys: match keys {
                "new" => Keys::New,
                number => Keys::Shared(number.parse()?),
            },
            name: name.to_owned(),
            in_flight: in_flight.parse()?,
            window: Duration::from_millis(millis.parse()?),
        })
    }
}

/// What became of a job.
pub(crate) struct Done {
    /// Locks that were taken and given back.
    pub(crate) pairs: u64,
    /// Locks that were granted before the window was over.
    pub(crate) in_window: u64,
    /// Until the server had confirmed the last release.
    pub(crate) seconds: f64,
    /// From asking for a lock to having it.
    pub(crate) waits: Waits,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pairs, in_window, seconds) = (self.pairs, self.in_window, self.seconds);
        write!(f, "{pairs} {in_window} {seconds} {}", self.waits.to_text())
    }
}

impl FromStr for Done {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        let words: Vec<_> = line.split_whitespace().collect();
        let [pairs, in_window, seconds, waits] = words[..] else {
            return Err(line.into());
        };
        Ok(Self {
            pairs: pairs.parse()?,
            in_window: in_window.parse()?,
            seconds: seconds.parse()?,
            waits: Waits::from_text(waits)?,
        })
    }
}
