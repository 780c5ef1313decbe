//! Releases that arrive once more, as they do when a connection breaks: I12.

use super::World;
use crate::load::hot;
use crate::referee::wire::{Release, releases_of};
use crate::support::engine::Monitor;
use crate::support::redis_server::RedisServer;

/// Of each server, the last ones.
const MOST: usize = 50;

impl World {
    /// Sends releases of the load again, when it is over and somebody else has their keys. How many
    /// were answered.
    pub(super) fn release_again(&self) -> usize {
        let mut answered = 0;
        for server in self.store.servers() {
            let monitors = self.monitors.iter();
            let lines = monitors
                .filter(|it| it.port() == server.port())
                .flat_map(Monitor::all_lines);
            let releases = releases_of(&lines.collect::<Vec<_>>(), &hot());
            let last = releases.iter().rev().take(MOST);
            answered += last
                .filter(|release| self.is_answered(server, release))
                .count();
        }
        answered
    }

    /// Whether the server answered, and so did what it was told, which must be nothing. It refuses
    /// where it was restarted since, and does not know the script, or where the slot has moved.
    fn is_answered(&self, server: &RedisServer, release: &Release) -> bool {
        let Release { args, keys } = release;
        let taken = |key: &String| server.command(&["HSET", key, "somebody else", "1"]).is_ok();
        if !keys.iter().all(taken) {
            return false;
        }
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let answer = server.command(&args);
        let is_left = |key: &String| server.cli(&["HLEN", key]) == "1";
        let are_left = keys.iter().all(is_left);
        keys.iter().for_each(|key| drop(server.cli(&["DEL", key])));
        let Ok(answer) = answer else { return false };
        let in_vain = are_left && answer.lines().all(|of_key| of_key == "0");
        self.referee.expect(in_vain, "I12", || {
            format!("{args:?}, sent again, was answered {answer:?}; left: {are_left}")
        });
        true
    }
}
