//! I12: releases that arrive twice, as after a broken connection.

use super::Run;
use crate::load::{PERMITS, SHARED, hot};
use crate::referee::wire::{Release, releases_of};
use crate::support::engine::Monitor;
use crate::support::redis_server::RedisServer;

/// The most releases per server and key that are repeated, from the whole run.
const ABOUT: usize = 12;
/// A deadline by the clock of the server that never passes.
const NEVER: &str = "9999999999999";

impl Run {
    /// Repeats releases of the load after its end, while other owners hold the keys. Returns the number of
    /// replies, and whether each server replied to some for each such key.
    pub(super) fn duplicate_releases(&self) -> (usize, bool) {
        let keys: Vec<_> = hot().into_iter().chain(self.load.mixed()).collect();
        let (mut all, mut everywhere) = (0, true);
        for server in self.store.servers() {
            let monitors = self.monitors.iter();
            let lines = monitors
                .filter(|it| it.port() == server.port())
                .flat_map(Monitor::all_lines);
            let releases = releases_of(&lines.collect::<Vec<_>>(), &keys);
            for key in &keys {
                let body = format!("lock:{key}");
                let of_key = releases.iter().filter(|it| it.keys.contains(&body));
                let of_key: Vec<_> = of_key.collect();
                let some = of_key.iter().step_by(of_key.len().div_ceil(ABOUT).max(1));
                let outcomes: Vec<_> = some.filter_map(|it| self.duplicate(server, it)).collect();
                let answered = outcomes.iter().filter(|answered| **answered).count();
                all += answered;
                everywhere &= answered > 0 || outcomes.is_empty();
            }
        }
        (all, everywhere && all > 0)
    }

    /// Returns `true` if the server replied. The release must not have taken effect. A restarted server
    /// rejects a script that it does not have. Returns `None` if the slot has moved.
    fn duplicate(&self, server: &RedisServer, release: &Release) -> Option<bool> {
        let Release { args, keys } = release;
        let taken = |key: &String| server.command(&held_by_another(key)).is_ok();
        if !keys.iter().all(taken) {
            return None;
        }
        let contents = || -> Vec<_> {
            keys.iter()
                .map(|key| server.cli(&["HGETALL", key]))
                .collect()
        };
        let before = contents();
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let answer = server.command(&args);
        let after = contents();
        keys.iter().for_each(|key| drop(server.cli(&["DEL", key])));
        let Ok(answer) = answer else {
            return Some(false);
        };
        let in_vain = before == after && answer == vec!["0"; keys.len()].join("\n");
        self.referee.expect(in_vain, "I12", || {
            format!("{args:?}, sent again, had the reply {answer:?}; left: {after:?}")
        });
        Some(true)
    }
}

/// Returns the command by which another owner holds a body, in the mode of most of its holders.
fn held_by_another(body: &str) -> Vec<&str> {
    let fields: &[&str] = match body.strip_prefix("lock:") {
        Some(SHARED) => &["mode", "shared", "sanother owner", NEVER],
        Some(PERMITS) => &["mode", "permits", "next", NEVER, "panother owner", NEVER],
        _ => &["another owner", "1"],
    };
    [&["HSET", body], fields].concat()
}
