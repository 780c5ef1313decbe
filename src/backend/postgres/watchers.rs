//! The waiters of this process.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::backend::{Hint, HintSender, LeaseId};

/// How long the row of a pair stays after its last subscriber. The next one of a busy key reuses it.
const LINGER: Duration = Duration::from_secs(2);

/// The most transfers that wait for a subscriber of their pair.
const MOST_EARLY: usize = 16;

/// The subscribers by key and manager. Each pair has a row in the database while it has a subscriber, and shortly after.
#[derive(Default)]
pub(super) struct Watchers {
    keys: HashMap<String, Vec<Watched>>,
}

struct Watched {
    manager: Uuid,
    senders: Vec<HintSender>,
    is_registered: bool,
    /// The leases that received the key before a subscriber was there.
    early: Vec<LeaseId>,
    abandoned: Option<Instant>,
}

impl Watched {
    fn new(manager: Uuid) -> Self {
        Self {
            manager,
            senders: Vec::new(),
            is_registered: false,
            early: Vec::new(),
            abandoned: None,
        }
    }

    /// The first hint of a subscriber reports that it is in effect.
    fn hint(&self) {
        if self.is_registered {
            self.senders.iter().for_each(HintSender::hint);
        }
    }

    fn transferred(&mut self, lease: LeaseId) {
        self.senders.retain(|it| !it.is_closed());
        for sender in &self.senders {
            sender.send(Hint::transferred(lease));
        }
        // One that ended before it subscribed again left these leases.
        if self.senders.is_empty() && self.early.len() < MOST_EARLY {
            self.early.push(lease);
        }
    }
}

impl Watchers {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    fn watched(&mut self, key: &str, manager: Uuid) -> &mut Watched {
        let all = self.keys.entry(key.to_owned()).or_default();
        let known = all.iter().position(|it| it.manager == manager);
        let index = known.unwrap_or_else(|| {
            all.push(Watched::new(manager));
            all.len() - 1
        });
        &mut all[index]
    }

    /// Adds a subscriber. Returns `true` if its pair has a row, so that it is in effect.
    pub(super) fn add(&mut self, key: &str, manager: Uuid, sender: HintSender) -> bool {
        let watched = self.watched(key, manager);
        for lease in watched.early.drain(..) {
            sender.send(Hint::transferred(lease));
        }
        if watched.is_registered {
            sender.hint();
        }
        watched.senders.push(sender);
        watched.abandoned = None;
        watched.is_registered
    }

    /// Returns `true` if the pair has subscribers, or lingers.
    pub(super) fn has(&self, key: &str, manager: Uuid) -> bool {
        let watched = self.keys.get(key);
        watched.is_some_and(|it| it.iter().any(|it| it.manager == manager))
    }

    /// Records that a pair has its row, so that releases notify it, and notifies its subscribers.
    pub(super) fn registered(&mut self, key: &str, manager: Uuid) {
        let watched = self.keys.get_mut(key).into_iter().flatten();
        for watched in watched.filter(|it| it.manager == manager) {
            watched.is_registered = true;
            watched.hint();
        }
    }

    /// Forwards a notification: `r <key>` of a release, or `t <lease> <key>` of a transfer.
    pub(super) fn received(&mut self, text: &str) {
        if let Some(key) = text.strip_prefix("r ") {
            self.released(key);
        } else if let Some((lease, key)) = text.strip_prefix("t ").and_then(|it| it.split_once(' '))
            && let Some((manager, number)) = lease.split_once(':')
            && let (Ok(manager), Ok(number)) = (Uuid::try_parse(manager), number.parse())
        {
            let lease = LeaseId::new(manager, number);
            self.watched(key, manager).transferred(lease);
        }
    }

    /// Notifies the subscribers of a key.
    fn released(&self, key: &str) {
        let watched = self.keys.get(key).into_iter().flatten();
        watched.for_each(Watched::hint);
    }

    pub(super) fn hint_all(&self) {
        self.keys.values().flatten().for_each(Watched::hint);
    }

    /// Returns all keys with their managers.
    pub(super) fn all(&self) -> Vec<(String, Uuid)> {
        let pairs = self.keys.iter();
        let pairs = pairs.flat_map(|(key, all)| all.iter().map(|it| (key.clone(), it.manager)));
        pairs.collect()
    }

    /// Drops the subscribers that closed. Returns the pairs that have had none for a while.
    pub(super) fn prune(&mut self) -> Vec<(String, Uuid)> {
        let mut ended = Vec::new();
        self.keys.retain(|key, all| {
            all.retain_mut(|watched| {
                watched.senders.retain(|it| !it.is_closed());
                if !watched.senders.is_empty() {
                    return true;
                }
                let abandoned = watched.abandoned.get_or_insert_with(Instant::now);
                let lingers = abandoned.elapsed() < LINGER;
                if !lingers {
                    ended.push((key.clone(), watched.manager));
                }
                lingers
            });
            !all.is_empty()
        });
        ended
    }
}
