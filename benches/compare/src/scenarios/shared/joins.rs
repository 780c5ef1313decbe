//! Readers that join the lease of another one in the same process: their rate, and the memory of each.

use crate::bench::Bench;
use crate::child::{Speaker, this_program};
use crate::sharing::{READERS, TASKS};
use crate::table::{Series, ratio, thousands};
use crate::target::{self, Target};

/// Each is a process of its own.
const KINDS: [(&str, &str); 5] = [
    ("redis", "tower-lock on Redis"),
    ("memory", "tower-lock on memory"),
    ("request", "requests and clocks, without a lock"),
    (
        "table",
        "the same, and a table of the readers under a mutex",
    ),
    ("rwlock", "`tokio::sync::RwLock`"),
];
const LEAST: f64 = 1_000_000.0;
/// The rate divided by that of `RwLock`.
const OF_RW_LOCK: f64 = 0.5;
const MOST_BYTES: f64 = 200.0;

pub(super) fn run(bench: &mut Bench) {
    if let Err(reason) = measure(bench) {
        bench.table.left_out("shared, joins", "all", &reason);
    }
}

fn measure(bench: &mut Bench) -> Result<(), String> {
    let mut rates = KINDS.map(|_| Series::default());
    let mut bytes = Series::default();
    for _ in 0..bench.rounds {
        for ((kind, _), rates) in KINDS.into_iter().zip(&mut rates) {
            rates.add(share(bench, kind)?);
        }
        bytes.add(share(bench, "readers")?);
    }
    let [redis, .., rw_lock] = &rates;
    let scenario =
        format!("shared, readers that join one key, {TASKS} tasks in one process: pairs");
    for ((_, name), rate) in KINDS.into_iter().zip(&rates) {
        let targets = match name.starts_with("tower-lock") {
            true => {
                let (rate, of) = (rate.median(), rate.median() / rw_lock.median());
                vec![
                    Target::at_least("pairs/s", rate, LEAST, 0),
                    Target::at_least("pairs/s over those of `RwLock`", of, OF_RW_LOCK, 1),
                ]
            }
            false => Vec::new(),
        };
        let ratio = ratio(rate, redis, KINDS[0].1);
        let note = target::note(&targets, String::new());
        bench
            .table
            .row(&scenario, name, rate.text(0, "/s"), ratio, note);
    }
    let scenario = format!(
        "shared, {} readers of one key: memory of each",
        thousands(READERS as f64, 0)
    );
    let target = Target::at_most("bytes", bytes.median(), MOST_BYTES, 0);
    let note = target::note(&[target], "resident; without its guard".to_owned());
    bench
        .table
        .row(&scenario, "tower-lock", bytes.text(0, "bytes"), "", note);
    Ok(())
}

/// Returns the figure that such a process prints.
fn share(bench: &Bench, what: &str) -> Result<f64, String> {
    let mut process = Speaker::start(this_program(&["share", what, &bench.server.url()]))?;
    let figure = process.expect("done")?;
    figure.parse().map_err(|_| format!("says `{figure}`"))
}
