//! The scenarios.

mod growth;
mod herd;
mod hot;
mod http;
mod one_core;
mod permits;
mod postgres;
mod processes;
mod release;
mod repeated;
mod scale;
mod shared;
mod starvation;
mod uncontended;
mod zipf;

use std::str::FromStr;

use crate::bench::Bench;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scenario {
    Uncontended,
    OneCore,
    Release,
    Repeated,
    Hot,
    Processes,
    Herd,
    Zipf,
    Shared,
    Permits,
    Starvation,
    Http,
    Scale,
    Growth,
    Postgres,
}

impl Scenario {
    pub(crate) const ALL: [Self; 15] = [
        Self::Uncontended,
        Self::OneCore,
        Self::Release,
        Self::Repeated,
        Self::Hot,
        Self::Processes,
        Self::Herd,
        Self::Zipf,
        Self::Shared,
        Self::Permits,
        Self::Starvation,
        Self::Http,
        Self::Scale,
        Self::Growth,
        Self::Postgres,
    ];

    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    pub(crate) fn run(self, bench: &mut Bench) {
        match self {
            Self::Uncontended => uncontended::run(bench),
            Self::OneCore => one_core::run(bench),
            Self::Release => release::run(bench),
            Self::Repeated => repeated::run(bench),
            Self::Hot => hot::run(bench),
            Self::Processes => processes::run(bench),
            Self::Herd => herd::run(bench),
            Self::Zipf => zipf::run(bench),
            Self::Shared => shared::run(bench),
            Self::Permits => permits::run(bench),
            Self::Starvation => starvation::run(bench),
            Self::Http => http::run(bench),
            Self::Scale => scale::run(bench),
            Self::Growth => growth::run(bench),
            Self::Postgres => postgres::run(bench),
        }
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let named = |scenario: &Self| scenario.name().eq_ignore_ascii_case(name);
        Self::ALL
            .into_iter()
            .find(named)
            .ok_or_else(|| format!("no scenario `{name}`; there are {:?}", Self::ALL))
    }
}
