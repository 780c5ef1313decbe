//! CPU times of processes, from `/proc`.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The unit of the times in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds of this process, and of the browser.
#[derive(Clone, Copy)]
struct Times {
    server: f64,
    browser: f64,
}

struct Process {
    parent: u32,
    seconds: f64,
}

/// Shares of a core, in percent.
pub(crate) struct Shares {
    pub(crate) server: f64,
    pub(crate) browser: f64,
}

/// Reads the parent and the time of a process that may have ended.
fn process(id: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name of the program before it can contain spaces.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().ok();
    Some(Process {
        parent: fields[1].parse().ok()?,
        seconds: (ticks(11)? + ticks(12)?) / TICKS_PER_SECOND,
    })
}

/// The browser is the driver's child, and the driver is ours.
fn times() -> Times {
    let entries = fs::read_dir("/proc").expect("Linux").filter_map(Result::ok);
    let ids = entries.filter_map(|it| it.file_name().to_str()?.parse().ok());
    let all: HashMap<u32, Process> = ids.filter_map(|id| Some((id, process(id)?))).collect();
    let own = std::process::id();
    let is_browser = |it: &&Process| {
        let mut parent = it.parent;
        let mut ancestors = 0;
        while parent != own {
            let Some(next) = all.get(&parent) else {
                return false;
            };
            parent = next.parent;
            ancestors += 1;
        }
        ancestors > 0
    };
    Times {
        server: all[&own].seconds,
        browser: all.values().filter(is_browser).map(|it| it.seconds).sum(),
    }
}

pub(crate) async fn shares(window: Duration) -> Shares {
    let (before, start) = (times(), Instant::now());
    sleep(window).await;
    let (after, seconds) = (times(), start.elapsed().as_secs_f64());
    Shares {
        server: (after.server - before.server) / seconds * 100.0,
        browser: (after.browser - before.browser) / seconds * 100.0,
    }
}
