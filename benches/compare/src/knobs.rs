//! What the command line asks for.

use lexopt::prelude::*;

use crate::scenarios::Scenario;

pub(crate) struct Knobs {
    pub(crate) rounds: usize,
    pub(crate) scenarios: Vec<Scenario>,
}

impl Knobs {
    /// `--rounds n` and names of scenarios; without any names, all of them.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, lexopt::Error> {
        let mut knobs = Self {
            rounds: 5,
            scenarios: Vec::new(),
        };
        let mut parser = lexopt::Parser::from_iter(arguments);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("rounds") => knobs.rounds = parser.value()?.parse()?,
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
