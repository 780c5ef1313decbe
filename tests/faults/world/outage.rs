//! Times without locks, and what may be sent in them.

use tokio::time::Instant;

use super::{PROCESSES, World};
use crate::referee::Outage;

/// An outage that has begun.
pub(crate) struct Begun {
    pub(crate) at: Instant,
    process: Option<usize>,
    connections: u64,
    commands: u64,
}

impl World {
    /// From here on a process, or all, may be without their locks.
    pub(crate) fn begin(&self, process: Option<usize>) -> Begun {
        let (connections, commands) = self.traffic();
        Begun {
            at: Instant::now(),
            process,
            connections,
            commands,
        }
    }

    /// The store can be used again. `cuts`: how often connections that were sound were ended.
    pub(crate) fn end(&mut self, begun: &Begun, cuts: u64) -> Outage {
        let usable = Instant::now();
        let outage = Outage {
            begin: begun.at,
            usable,
            process: begun.process,
        };
        self.referee.outage(outage);
        // I15.
        let (connections, commands) = self.traffic();
        let made = connections - begun.connections;
        let sent = commands - begun.commands;
        let took = usable - begun.at;
        // For commands and for messages, up to three a second.
        let allowed = 2 * PROCESSES as u64 * (6 + 3 * took.as_secs() + cuts);
        self.referee.expect(made <= allowed, "I15", || {
            format!("{made} connections in {took:?}")
        });
        // Each acquire sends its try and what undoes it; each lock of this load, of which a process
        // has ten, is renewed or given back once every backoff step of 50 ms at the most.
        let asked = self.referee.asked_since(begun.at) as u64;
        let steps = u64::try_from(took.as_millis() / 50).unwrap_or(u64::MAX) + 2;
        let allowed = 3 * asked + 10 * PROCESSES as u64 * steps;
        self.referee.expect(sent <= allowed, "I15", || {
            format!("{sent} commands in {took:?}, for {asked} acquires")
        });
        self.evidence.push(format!(
            "{:.1} s, {made} connections, {sent} commands",
            took.as_secs_f64()
        ));
        outage
    }

    pub(crate) fn connections_since(&self, begun: &Begun) -> u64 {
        self.traffic().0 - begun.connections
    }

    /// Connections made at the proxies, and scripts called through them.
    fn traffic(&self) -> (u64, u64) {
        let proxies = self
            .gates
            .iter()
            .flat_map(|gate| [&gate.commands, &gate.messages]);
        let each = proxies.map(|proxy| (proxy.accepted(), proxy.scripts()));
        each.fold((0, 0), |(made, sent), it| (made + it.0, sent + it.1))
    }
}
