//! The calls of a window.

use redis::{Cmd, Connection, Pipeline, Value};
use tokio::time::Instant;

use super::formats::{Format, load};
use crate::bench::Bench;

const LEASE: &str = "7ee9e9e5-56b8-4b3c-9d0b-000000000000:1";
const LEASE_MILLIS: u32 = 30_000;
const COUNTER: &str = "lock:{fencing-token}%";
const ACQUIRE_ALL: &str = concat!(
    include_str!("../../../../../src/backend/redis/command/lua/fence.lua"),
    include_str!("../../../../../src/backend/redis/command/lua/acquire_all.lua"),
);
/// The number of different names.
const NAMES: usize = 128;
/// How often a window releases each name.
const TIMES: usize = 10;

/// The calls of one number of leases each, with each script.
pub(super) struct Calls<'a> {
    connection: &'a mut Connection,
    /// Writes the locks by plain commands, so that each script that the server runs is a release.
    writes: Pipeline,
    acquires: Vec<Cmd>,
    releases: [Vec<Cmd>; Format::ALL.len()],
}

impl<'a> Calls<'a> {
    pub(super) fn new(connection: &'a mut Connection, size: usize) -> Result<Self, String> {
        let names: Vec<_> = (0..NAMES).map(|n| format!("lock:released:{n}")).collect();
        let (mut writes, mut acquires) = (Pipeline::new(), Vec::new());
        let mut releases = Format::ALL.map(|_| Vec::new());
        for name in &names {
            writes.cmd("HSET").arg(name).arg(LEASE).arg(1).ignore();
            writes.cmd("PEXPIRE").arg(name).arg(LEASE_MILLIS).ignore();
        }
        for names in names.chunks(size) {
            let mut acquire = load(connection, ACQUIRE_ALL)?;
            acquire.arg(1 + size).arg(COUNTER).arg(names);
            for _ in names {
                acquire.arg(LEASE).arg(LEASE_MILLIS);
            }
            acquires.push(acquire);
            for (format, releases) in Format::ALL.into_iter().zip(&mut releases) {
                releases.push(format.release(connection, LEASE, names)?);
            }
        }
        Ok(Self {
            connection,
            writes,
            acquires,
            releases,
        })
    }

    /// Returns the time of the server for each release, in microseconds, by the script at `format`.
    pub(super) fn server_time(&mut self, bench: &Bench, format: usize) -> Result<f64, String> {
        let mut releases = Pipeline::new();
        for release in &self.releases[format] {
            releases.add_command(release.clone());
        }
        bench.server.cli(&["CONFIG", "RESETSTAT"]);
        for _ in 0..TIMES {
            let written = self.writes.exec(self.connection);
            written.map_err(|error| error.to_string())?;
            released(releases.query(self.connection))?;
        }
        let stats = bench.server.cli(&["INFO", "commandstats"]);
        let micros = micros(&stats).ok_or("the server reports no time of scripts")?;
        Ok(micros / (TIMES * NAMES) as f64)
    }

    /// Acquires and releases, one call at a time. Returns pairs per second, and the median time of an acquire and
    /// a release in microseconds.
    pub(super) fn pairs(&mut self, format: usize) -> Result<(f64, f64), String> {
        let mut times = Vec::new();
        let start = Instant::now();
        for _ in 0..TIMES {
            for (acquire, release) in self.acquires.iter().zip(&self.releases[format]) {
                let asked = Instant::now();
                let acquired = acquire.exec(self.connection);
                acquired.map_err(|error| error.to_string())?;
                released(release.query(self.connection))?;
                times.push(asked.elapsed());
            }
        }
        let rate = (TIMES * NAMES) as f64 / start.elapsed().as_secs_f64();
        times.sort_unstable();
        Ok((rate, times[times.len() / 2].as_secs_f64() * 1e6))
    }
}

/// Returns an error unless all leases are released.
fn released(reply: redis::RedisResult<Value>) -> Result<(), String> {
    fn is_released(reply: &Value) -> bool {
        match reply {
            Value::Array(replies) => replies.iter().all(is_released),
            reply => *reply == Value::Int(1),
        }
    }
    let reply = reply.map_err(|error| error.to_string())?;
    match is_released(&reply) {
        true => Ok(()),
        false => Err(format!("a release of held locks returned {reply:?}")),
    }
}

/// Returns the time in scripts since the last reset, from `INFO commandstats`.
fn micros(stats: &str) -> Option<f64> {
    let fields = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:"))?;
    let mut fields = fields.split(',');
    fields.find_map(|field| field.strip_prefix("usec=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_scripts_is_read() {
        let stats = "cmdstat_eval:calls=1,usec=9\r\n\
                     cmdstat_evalsha:calls=2,usec=5,usec_per_call=2.50,rejected_calls=0\r\n";
        assert_eq!(micros(stats), Some(5.0));
        assert_eq!(micros("cmdstat_eval:calls=1,usec=9\r\n"), None);
    }

    #[test]
    fn reply_shows_whether_all_are_released() {
        let (one, none) = (Value::Int(1), Value::Int(0));
        let list = |replies: [&Value; 2]| Value::Array(replies.map(Value::clone).to_vec());
        assert!(released(Ok(one.clone())).is_ok());
        assert!(released(Ok(list([&one, &one]))).is_ok());
        for reply in [none.clone(), Value::Int(2), list([&one, &none])] {
            assert!(released(Ok(reply)).is_err());
        }
    }
}
