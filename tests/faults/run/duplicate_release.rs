//! I12: releases that arrive twice, as after a broken connection.

use super::Run;
use crate::load::hot;
use crate::referee::wire::{Release, releases_of};
use crate::support::engine::Monitor;
use crate::support::redis_server::RedisServer;

/// The most releases per server that are repeated, from the whole run.
const ABOUT: usize = 50;

impl Run {
    /// Repeats releases of the load after its end, while other owners hold the keys. Returns the number of
    /// replies, and whether each server with such keys replied to some.
    pub(super) fn duplicate_releases(&self) -> (usize, bool) {
        let (mut all, mut everywhere) = (0, true);
        for server in self.store.servers() {
            let monitors = self.monitors.iter();
            let lines = monitors
                .filter(|it| it.port() == server.port())
                .flat_map(Monitor::all_lines);
            let releases = releases_of(&lines.collect::<Vec<_>>(), &hot());
            let some = releases
                .iter()
                .step_by(releases.len().div_ceil(ABOUT).max(1));
            let outcomes: Vec<_> = some.filter_map(|it| self.duplicate(server, it)).collect();
            let answered = outcomes.iter().filter(|answered| **answered).count();
            all += answered;
            everywhere &= answered > 0 || outcomes.is_empty();
        }
        (all, everywhere && all > 0)
    }

    /// Returns `true` if the server replied. The release must not have taken effect. A restarted server
    /// rejects a script that it does not have. Returns `None` if the slot has moved.
    fn duplicate(&self, server: &RedisServer, release: &Release) -> Option<bool> {
        let Release { args, keys } = release;
        let taken = |key: &String| server.command(&["HSET", key, "another owner", "1"]).is_ok();
        if !keys.iter().all(taken) {
            return None;
        }
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let answer = server.command(&args);
        let is_left = |key: &String| server.cli(&["HLEN", key]) == "1";
        let are_left = keys.iter().all(is_left);
        keys.iter().for_each(|key| drop(server.cli(&["DEL", key])));
        let Ok(answer) = answer else {
            return Some(false);
        };
        let in_vain = are_left && answer == vec!["0"; keys.len()].join("\n");
        self.referee.expect(in_vain, "I12", || {
            format!("{args:?}, sent again, had the reply {answer:?}; left: {are_left}")
        });
        Some(true)
    }
}
