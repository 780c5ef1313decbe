//! The servers of the backend, and their recent incidents.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::mutex::Mutex;
use crate::observe::Server;

const INCIDENTS: usize = 256;

/// The longest text, in bytes: an incident has 256 in all.
const TEXT: usize = 256 - size_of::<Incident>();

/// The incidents of one frame.
const SHOWN: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Servers {
    known: Vec<(Server, u64)>,
    incidents: Incidents,
}

/// The last incidents. Clones share them.
#[derive(Debug, Clone, Default)]
pub(in crate::dashboard) struct Incidents(Arc<Mutex<VecDeque<Incident>>>);

#[derive(Debug)]
struct Incident {
    /// Milliseconds since 1970.
    at: u64,
    text: Box<str>,
}

impl Servers {
    pub(super) fn new(incidents: Incidents) -> Self {
        Self {
            known: Vec::new(),
            incidents,
        }
    }

    /// Compares the servers with those of the last call.
    pub(super) fn update(&mut self, at: u64, servers: Vec<Server>) {
        let mut known = Vec::with_capacity(servers.len());
        for server in servers {
            let mut before = self.known.iter();
            let before =
                before.find(|(it, _)| it.address == server.address && it.part == server.part);
            let (since, text) = match before {
                None => (at, (!server.is_up).then_some("is down: ")),
                Some((it, _)) if it.is_up && !server.is_up => (at, Some("is down: ")),
                Some((it, _)) if !it.is_up && server.is_up => (at, Some("is up again")),
                Some((it, _)) if it.is_up && it.incidents < server.incidents => {
                    (at, Some("was down for a moment: "))
                }
                Some((_, since)) => (*since, None),
            };
            if let Some(text) = text {
                let cause = match text {
                    "is up again" => "",
                    _ => &server.cause,
                };
                let text = format!("{} {} {text}{cause}", server.address, server.part);
                self.incidents.add(at, text);
            }
            known.push((server, since));
        }
        self.known = known;
    }

    /// Records that the process did nothing for a while.
    pub(super) fn paused(&mut self, at: u64, gap: Duration) {
        let seconds = gap.as_secs_f64();
        let text = format!("this process paused for {seconds:.1} s, or its clock was set");
        self.incidents.add(at, text);
    }

    pub(super) fn servers(&self) -> Value {
        let servers = self.known.iter().map(|(server, since)| {
            json!({
                "server": server.address,
                "part": server.part.as_str(),
                "up": server.is_up,
                "since": since,
                "incidents": server.incidents,
                "cause": (!server.is_up).then_some(&*server.cause),
            })
        });
        servers.collect()
    }

    /// Returns the incidents of a frame.
    pub(super) fn incidents(&self) -> Value {
        self.incidents.last(SHOWN)
    }
}

impl Incidents {
    fn add(&self, at: u64, text: String) {
        let mut list = self.0.lock();
        if list.len() == INCIDENTS {
            list.pop_front();
        }
        let text = cut(text).into();
        list.push_back(Incident { at, text });
    }

    /// Returns all incidents, the oldest first.
    pub(in crate::dashboard) fn all(&self) -> Value {
        self.last(INCIDENTS)
    }

    fn last(&self, limit: usize) -> Value {
        let list = self.0.lock();
        let last = list.iter().skip(list.len().saturating_sub(limit));
        last.map(|it| json!({ "at": it.at, "text": it.text }))
            .collect()
    }
}

/// Cuts a text that is too long, and marks its end.
fn cut(mut text: String) -> String {
    const MARK: char = '…';
    if text.len() > TEXT {
        let mut end = TEXT - MARK.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push(MARK);
    }
    text
}

#[cfg(test)]
#[cfg(feature = "redis")]
mod tests {
    use super::*;
    use crate::observe::Part;

    fn server(is_up: bool, incidents: u64) -> Vec<Server> {
        vec![Server {
            address: "a:1".to_owned(),
            part: Part::Commands,
            is_up,
            incidents,
            cause: "no reply within 500ms".to_owned(),
        }]
    }

    #[test]
    fn changes_are_incidents() {
        let mut servers = Servers::default();
        servers.update(1, server(true, 0));
        servers.update(2, server(true, 0));
        assert!(servers.incidents.0.lock().is_empty());
        servers.update(3, server(false, 1));
        servers.update(4, server(false, 1));
        servers.update(5, server(true, 1));
        servers.update(6, server(true, 2));
        let incidents = servers.incidents.0.lock();
        let seen: Vec<_> = incidents.iter().map(|it| (it.at, &*it.text)).collect();
        let expected = [
            (3, "a:1 commands is down: no reply within 500ms"),
            (5, "a:1 commands is up again"),
            (
                6,
                "a:1 commands was down for a moment: no reply within 500ms",
            ),
        ];
        assert_eq!(seen, expected);
        assert_eq!(servers.servers()[0]["since"], 6);
    }

    #[test]
    fn long_incident_is_cut() {
        for address in ["a".repeat(TEXT), "ä".repeat(TEXT), "€".repeat(TEXT)] {
            let mut servers = Servers::default();
            let mut long = server(false, 1);
            long[0].address = address;
            servers.update(1, long);
            let text = &servers.incidents.0.lock()[0].text;
            assert!((TEXT - 3..=TEXT).contains(&text.len()), "{text}");
            assert!(text.ends_with('…'), "{text}");
        }
        assert_eq!(cut("a".repeat(TEXT)), "a".repeat(TEXT));
    }

    #[test]
    fn cause_is_shown_while_server_is_down() {
        let mut servers = Servers::default();
        servers.update(1, server(false, 1));
        assert_eq!(servers.servers()[0]["cause"], "no reply within 500ms");
        servers.update(2, server(true, 1));
        assert_eq!(servers.servers()[0]["cause"], Value::Null);
    }

    #[test]
    fn incidents_are_bounded() {
        let mut servers = Servers::default();
        (0..1000).for_each(|at| servers.update(at, server(at % 2 == 0, 0)));
        let (all, shown) = (servers.incidents.all(), servers.incidents());
        assert_eq!(all.as_array().map(Vec::len), Some(INCIDENTS));
        assert_eq!(shown.as_array().map(Vec::len), Some(SHOWN));
        for incidents in [all, shown] {
            assert_eq!(incidents.as_array().unwrap().last().unwrap()["at"], 999);
        }
    }
}
