//! Times without locks, and the commands that are allowed in them.

use std::iter::repeat;

use tokio::time::Instant;

use super::{PROCESSES, Run};
use crate::referee::Outage;
use crate::store::Store;
use crate::support::engine::scripts_called;
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

/// An outage that has begun.
pub(crate) struct Begun {
    pub(crate) at: Instant,
    process: Option<usize>,
    traffic: Vec<Option<Traffic>>,
}

/// The connections and script calls at one place since its start.
#[derive(Clone, Copy)]
struct Traffic {
    connections: u64,
    commands: u64,
}

impl Run {
    /// Begins an outage, in which one process or all may lose their locks.
    pub(crate) fn begin(&self, process: Option<usize>) -> Begun {
        Begun {
            at: Instant::now(),
            process,
            traffic: self.traffic(),
        }
    }

    /// Ends the outage: the store is usable again. `cuts`: the number of times that healthy connections
    /// were ended.
    pub(crate) fn end(&mut self, begun: &Begun, cuts: u64) -> Outage {
        let usable = Instant::now();
        let outage = Outage {
            begin: begun.at,
            usable,
            process: begun.process,
        };
        self.referee.outage(outage);
        // I15.
        let Traffic {
            connections: made,
            commands: sent,
        } = self.traffic_since(begun);
        let took = usable - begun.at;
        // Each process has its own connections.
        let servers = self.store.all_servers().len().max(1) as u64;
        // Commands and messages have separate connections, with up to three attempts a second.
        let allowed = 2 * servers * PROCESSES as u64 * (6 + 3 * took.as_secs() + cuts);
        self.referee.expect(made <= allowed, "I15", || {
            format!("{made} connections in {took:?}")
        });
        // Each acquire sends an attempt, another one after its subscription, and a release, which notifies
        // the other processes. Each of the 16 locks of a process is renewed or released at most once
        // per backoff step of 50 ms.
        let asked = self.referee.asked_since(begun.at) as u64;
        let steps = u64::try_from(took.as_millis() / 50).unwrap_or(u64::MAX) + 2;
        let processes = PROCESSES as u64;
        let once = (2 + processes) * asked + 16 * processes * steps;
        let votes = match &self.store {
            Store::Quorum(servers) => servers.len() as u64,
            _ => 1,
        };
        let allowed = votes * once;
        self.referee.expect(sent <= allowed, "I15", || {
            format!("{sent} commands in {took:?}, for {asked} acquires, of {allowed}")
        });
        self.evidence.push(format!(
            "{:.1} s, {made} connections, {sent} commands of {allowed}",
            took.as_secs_f64()
        ));
        // Some servers were restarted, or ended all connections.
        self.watch_the_wire();
        outage
    }

    pub(crate) fn connections_since(&self, begun: &Begun) -> u64 {
        self.traffic_since(begun).connections
    }

    /// Returns the counts at the proxies. Without proxies, these are the counts of the running servers,
    /// without the connections between servers.
    fn traffic(&self) -> Vec<Option<Traffic>> {
        if self.gates.is_empty() {
            let servers = self.store.all_servers().into_iter();
            return servers.map(|it| it.runs().then(|| at(it))).collect();
        }
        let gates = self.gates.iter();
        let proxies = gates.flat_map(|gate| [&gate.commands, &gate.messages]);
        let through = |proxy: &Proxy| Traffic {
            connections: proxy.accepted(),
            commands: proxy.scripts(),
        };
        proxies.map(|proxy| Some(through(proxy))).collect()
    }

    fn traffic_since(&self, begun: &Begun) -> Traffic {
        let mut sum = Traffic {
            connections: 0,
            commands: 0,
        };
        // Processes may have been added.
        let before = begun.traffic.iter().copied().chain(repeat(None));
        for (now, before) in self.traffic().into_iter().zip(before) {
            let Some(now) = now else { continue };
            // A restarted server counts from its start.
            let before = before.filter(|it| it.connections <= now.connections);
            sum.connections += now.connections - before.map_or(0, |it| it.connections);
            sum.commands += now.commands - before.map_or(0, |it| it.commands.min(now.commands));
        }
        sum
    }
}

fn at(server: &RedisServer) -> Traffic {
    let stats = server.cli(&["INFO", "stats"]);
    let made = stats.lines().find_map(|line| {
        let made = line.strip_prefix("total_connections_received:")?;
        made.trim().parse().ok()
    });
    Traffic {
        connections: made.expect("a number"),
        commands: scripts_called(server),
    }
}
