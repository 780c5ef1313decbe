//! The servers of the lock backends of this process, and their outages.

use std::sync::Arc;

use super::label::label;

use crate::mutex::Mutex;

/// The most parts of servers that are distinguished, those of 64 servers: each part has series of its own.
const MOST: usize = 3 * 64;

/// The most characters of a cause.
#[cfg(feature = "dashboard")]
const CAUSE: usize = 160;

label! {
    /// The part of a server that can fail alone.
    #[derive(PartialOrd, Ord)]
    pub(crate) enum Part {
        /// Grants and the connection.
        Commands = "commands",
        /// A server that grants can reject releases.
        Releases = "releases",
        Notifications = "notifications",
        Sentinel = "sentinel",
    }
}

/// The state of a part of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    /// `host:port`, or the path of a socket.
    pub(crate) address: String,
    pub(crate) part: Part,
    pub(crate) is_up: bool,
    /// The outages that have begun.
    pub(crate) incidents: u64,
    /// The last cause of the last outage, as in the log.
    #[cfg(feature = "dashboard")]
    pub(crate) cause: String,
}

/// A part of a server that reports its outages. Several backends, or several connections, may report the same one.
#[derive(Debug)]
pub(crate) struct Reporter {
    state: Option<Arc<Mutex<State>>>,
}

#[derive(Debug)]
struct State {
    /// The reporters whose outages have begun.
    outages: usize,
    server: Server,
}

static SERVERS: Servers = Servers(Mutex::new(Vec::new()));

struct Servers(Mutex<Vec<Arc<Mutex<State>>>>);

impl Servers {
    /// Returns `None` if there are too many.
    fn get_or_add(&self, address: &str, part: Part) -> Option<Arc<Mutex<State>>> {
        let mut servers = self.0.lock();
        let known = servers.iter().find(|it| {
            let server = &it.lock().server;
            server.address == address && server.part == part
        });
        if let Some(known) = known {
            return Some(Arc::clone(known));
        }
        if servers.len() == MOST {
            // A server that left has no reporter.
            let left = servers.iter().position(|it| Arc::strong_count(it) == 1);
            servers.remove(left?);
        }
        let server = Server {
            address: address.to_owned(),
            part,
            is_up: true,
            incidents: 0,
            #[cfg(feature = "dashboard")]
            cause: String::new(),
        };
        let state = Arc::new(Mutex::new(State { outages: 0, server }));
        servers.push(Arc::clone(&state));
        Some(state)
    }
}

impl Reporter {
    pub(crate) fn new(address: &str, part: Part) -> Self {
        Self {
            state: SERVERS.get_or_add(address, part),
        }
    }

    pub(crate) fn outage_begins(&self) {
        if let Some(state) = &self.state {
            let mut state = state.lock();
            state.outages += 1;
            state.server.incidents += 1;
        }
    }

    /// Records the last cause of an outage.
    #[cfg_attr(
        not(feature = "dashboard"),
        allow(unused_variables, clippy::unused_self)
    )]
    pub(crate) fn failed(&self, cause: &str) {
        #[cfg(feature = "dashboard")]
        if let Some(state) = &self.state {
            state.lock().server.cause = cause.chars().take(CAUSE).collect();
        }
    }

    pub(crate) fn outage_ends(&self) {
        if let Some(state) = &self.state {
            let mut state = state.lock();
            state.outages = state.outages.saturating_sub(1);
        }
    }
}

/// Returns the state of each server.
#[cfg(any(feature = "metrics", feature = "dashboard"))]
pub(crate) fn read() -> Vec<Server> {
    let servers = SERVERS.0.lock();
    let servers = servers.iter().map(|state| {
        let state = state.lock();
        Server {
            is_up: state.outages == 0,
            ..state.server.clone()
        }
    });
    servers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_bounded() {
        let servers = Servers(Mutex::default());
        let add = |n: usize| servers.get_or_add(&format!("a:{n}"), Part::Commands);
        let mut states: Vec<_> = (0..MOST).map(add).collect();
        assert!(states.iter().all(Option::is_some));
        assert!(add(MOST).is_none());
        assert!(add(0).is_some(), "a known one has its place");
        // One that left makes room, and takes the place of no other.
        drop(states.swap_remove(1));
        assert!(add(MOST).is_some());
        assert_eq!(servers.0.lock().len(), MOST);
        let left = servers
            .0
            .lock()
            .iter()
            .any(|it| it.lock().server.address == "a:1");
        assert!(!left);
    }
}
