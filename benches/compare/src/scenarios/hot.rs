//! One key that everybody in a process wants.

use std::time::Duration;

use crate::bench::{Bench, result};
use crate::contenders::Contender;
use crate::job::Keys;
use crate::plot::{self, Line};
use crate::table::{Series, ratio};
use crate::waits::Waits;

const WAITERS: [usize; 3] = [8, 64, 512];
/// Whose waits are drawn.
const DRAWN: usize = 64;
const WINDOW: Duration = Duration::from_millis(1_500);

pub(crate) const CONTENDERS: [Contender; 6] = [
    Contender::Ours,
    Contender::Bare,
    Contender::Checkout,
    Contender::Rslock,
    Contender::DistributedLock,
    Contender::Redisson,
];

/// What one contender has reached with so many waiters.
struct Figures {
    contender: Contender,
    failure: String,
    grants: Series,
    spread: Series,
    waits: Waits,
}

pub(crate) fn run(bench: &mut Bench) {
    let key = Keys::Shared(1);
    let mut teams = bench.teams(&CONTENDERS, 1, key, DRAWN);
    let mut all = WAITERS.map(|_| CONTENDERS.map(Figures::new));
    for _ in 0..bench.rounds {
        for (waiters, figures) in WAITERS.into_iter().zip(&mut all) {
            for (team, figures) in teams.iter_mut().zip(figures) {
                if let Some(report) = team.run(&bench.job(key, waiters, WINDOW)) {
                    figures.add(report.grants(), &report.waits());
                }
                figures.failure = team.failure();
            }
        }
    }
    for (waiters, figures) in WAITERS.into_iter().zip(&all) {
        tell(bench, waiters, figures);
        if waiters == DRAWN {
            draw(figures);
        }
    }
}

impl Figures {
    fn new(contender: Contender) -> Self {
        Self {
            contender,
            failure: String::new(),
            grants: Series::default(),
            spread: Series::default(),
            waits: Waits::new(),
        }
    }

    fn add(&mut self, grants: u64, waits: &Waits) {
        self.grants.add(grants as f64 / WINDOW.as_secs_f64());
        self.spread.add(waits.longest() / waits.at(0.5));
        self.waits.add(waits);
    }
}

fn tell(bench: &mut Bench, waiters: usize, all: &[Figures]) {
    let scenario = format!("one hot key, {waiters} waiters in one process, grants");
    for figures in all {
        let name = figures.contender.name();
        if figures.grants.is_empty() {
            bench.table.left_out(&scenario, name, &figures.failure);
            continue;
        }
        let ratio = ratio(&figures.grants, &all[0].grants, "tower-lock");
        let note = format!("longest wait {} × the median", figures.spread.text(0, ""));
        bench
            .table
            .row(&scenario, name, figures.grants.per_second(), ratio, note);
    }
}

fn draw(all: &[Figures]) {
    let drawn = all.iter().filter(|figures| !figures.grants.is_empty());
    let lines: Vec<_> = drawn.map(|it| Line::new(it.contender, &it.waits)).collect();
    plot::waits(
        &result("hot.svg"),
        &format!("Wait for one hot key, {DRAWN} waiters in one process"),
        &lines,
    );
}
