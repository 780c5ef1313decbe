//! An uncontended release, with the queue of tower-lock and with its script before that: the time of the server,
//! and pairs of an acquire and a release.
//!
//! Only the release differs. Both scripts run on one server in turns, with client and server on one core, so that
//! the time to wake another core is no part of a figure.

mod calls;
mod formats;
mod measured;

use crate::bench::{Bench, turns};
use crate::contenders::Contender;
use crate::cores::OnOneCore;
use crate::job::Keys;

use calls::Calls;
use formats::Format;
use measured::Measured;

const SCENARIO: &str = "release of a free lock";
/// The number of windows in a round for each script. They are short, because the speed of the machine changes over
/// seconds.
const WINDOWS: usize = 40;
/// The number of leases in one call, as the backend sends them with one lock and with many locks in flight.
const SIZES: [usize; 2] = [1, 64];

pub(super) fn run(bench: &mut Bench) {
    if let Err(reason) = measure(bench) {
        bench.table.left_out(SCENARIO, "all", &reason);
    }
}

fn measure(bench: &mut Bench) -> Result<(), String> {
    // This process has released by the script of tower-lock, so the server knows the script.
    drop(bench.teams(&[Contender::OursAwaited], 1, Keys::New, 1));
    let client = redis::Client::open(bench.server.url());
    let connection = client.and_then(|client| client.get_connection());
    let mut connection = connection.map_err(|error| error.to_string())?;
    let known = Format::Queue.is_known(&mut connection)?;
    assert!(
        known,
        "BUG: the script differs from the one that tower-lock sends"
    );
    let _pinned = OnOneCore::new(vec![std::process::id(), bench.server_process()])?;
    for size in SIZES {
        let mut calls = Calls::new(&mut connection, size)?;
        let mut all = Format::ALL.map(|_| Measured::default());
        for window in 0..bench.rounds * WINDOWS {
            for at in turns(window, Format::ALL.len()) {
                all[at].add(bench, &mut calls, at)?;
            }
        }
        measured::tell(bench, size, &all);
    }
    Ok(())
}
