//! tower-lock beside other locks on the same Redis server: `make bench`.

mod bench;
mod child;
mod contenders;
mod contention;
mod cores;
mod cpu;
mod job;
mod keys;
mod knobs;
#[path = "../../../tests/support/patience.rs"]
#[allow(dead_code)]
mod patience;
mod plot;
#[path = "../../../tests/support/postgres_server.rs"]
#[allow(dead_code)]
mod postgres_server;
#[path = "../../../tests/support/preloaded.rs"]
mod preloaded;
#[path = "../../../tests/support/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../../../tests/support/redis_server.rs"]
#[allow(dead_code)]
mod redis_server;
mod results;
mod scaling;
mod scenarios;
#[path = "../../speed/scripts.rs"]
mod scripts;
mod serving;
mod sharing;
mod standstill;
mod table;
mod target;
mod team;
mod waits;
mod work;

use std::error::Error;

use bench::Bench;
use contenders::Contender;
use knobs::Knobs;

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result {
    let arguments: Vec<_> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[1..] {
        // The program starts itself in these modes for the parts that need their own process.
        ["work", contender, managers, url] => run(Contender::work(contender, managers, url)),
        ["serve", locks, url] => run(serving::serve(locks, url)),
        ["hold", count, seconds, url] => run(scaling::hold(count, seconds, url)),
        ["scale", what, url] => run(scaling::scale(what, url)),
        ["share", what, url] => run(sharing::share(what, url)),
        _ => compare(&Knobs::parse(arguments.into_iter())?),
    }
}

#[tokio::main]
async fn run(work: impl Future<Output = Result>) -> Result {
    work.await
}

fn compare(knobs: &Knobs) -> Result {
    let mut bench = Bench::new(knobs);
    for scenario in &knobs.scenarios {
        scenario.run(&mut bench);
        results::write(*scenario, &mut bench)?;
    }
    Ok(())
}
