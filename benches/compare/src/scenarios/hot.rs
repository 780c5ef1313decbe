//! One key that all clients of one process want.

use std::time::Duration;

use crate::bench::{Bench, result, turns};
use crate::contenders::Contender;
use crate::contention::Contention;
use crate::job::Keys;
use crate::plot::{self, Line};
use crate::standstill::Standstills;
use crate::team::Team;

const WAITERS: [usize; 3] = [8, 64, 512];
/// The number of waiters whose waits are drawn.
const DRAWN: usize = 64;
const WINDOW: Duration = Duration::from_millis(1_500);

pub(crate) fn run(bench: &mut Bench) {
    let key = Keys::Shared(1);
    let mut teams = bench.teams(&Contender::IN_ONE_PROCESS, 1, key, DRAWN);
    let mut all = WAITERS.map(|_| Contender::IN_ONE_PROCESS.map(|_| Contention::over(WINDOW)));
    let mut standstills = Standstills::of(1);
    for round in 0..bench.rounds {
        standstills.watch(WINDOW);
        for (waiters, contentions) in WAITERS.into_iter().zip(&mut all) {
            for at in turns(round, teams.len()) {
                if let Some(report) = teams[at].run(&bench.job(key, waiters, WINDOW)) {
                    contentions[at].add(&report);
                }
            }
        }
    }
    for (waiters, contentions) in WAITERS.into_iter().zip(&all) {
        let scenario = format!("one hot key, {waiters} waiters in one process: grants");
        for (team, contention) in teams.iter().zip(contentions) {
            let (grants, ours) = (&contention.grants, &contentions[0].grants);
            let note = || contention.longest_wait();
            bench.table.rate(&scenario, team, grants, ours, note);
        }
        if waiters == DRAWN {
            standstills.tell(&mut bench.table, &scenario);
            draw(&teams, contentions);
        }
    }
}

fn draw(teams: &[Team], all: &[Contention]) {
    let lines = teams.iter().zip(all);
    let lines = lines.filter(|(_, contention)| !contention.grants.is_empty());
    let lines = lines.map(|(team, contention)| Line::new(team.contender, &contention.waits));
    plot::waits(
        &result("hot.svg"),
        &format!("Wait for one busy key, {DRAWN} waiters in one process"),
        &lines.collect::<Vec<_>>(),
    );
}
