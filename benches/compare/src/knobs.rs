//! The options of the command line.

use std::num::NonZeroU64;
use std::time::Duration;

use lexopt::prelude::*;

use crate::scenarios::Scenario;

pub(crate) struct Knobs {
    pub(crate) rounds: usize,
    pub(crate) scenarios: Vec<Scenario>,
    /// The length of the window for each figure of `herd`.
    pub(crate) herd_window: Duration,
    /// The length of each window of `starvation`.
    pub(crate) starvation_window: Duration,
}

impl Knobs {
    /// Parses `--rounds n`, `--herd-seconds n`, `--starvation-seconds n` and names of scenarios. Without names, all
    /// scenarios run.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, lexopt::Error> {
        let mut knobs = Self {
            rounds: 5,
            scenarios: Vec::new(),
            herd_window: Duration::from_secs(5),
            starvation_window: Duration::from_secs(5),
        };
        let mut parser = lexopt::Parser::from_iter(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("rounds") => knobs.rounds = parser.value()?.parse()?,
                Long("herd-seconds") => knobs.herd_window = seconds(&mut parser)?,
                Long("starvation-seconds") => knobs.starvation_window = seconds(&mut parser)?,
                Value(name) => knobs.scenarios.push(name.parse()?),
                other => return Err(other.unexpected()),
            }
        }
        if knobs.scenarios.is_empty() {
            knobs.scenarios = Scenario::ALL.to_vec();
        }
        knobs.rounds = knobs.rounds.max(1);
        Ok(knobs)
    }
}

fn seconds(parser: &mut lexopt::Parser) -> Result<Duration, lexopt::Error> {
    let seconds: NonZeroU64 = parser.value()?.parse()?;
    Ok(Duration::from_secs(seconds.get()))
}
