//! The waiters of this process.

use std::collections::HashMap;

use uuid::Uuid;

use crate::backend::HintSender;

/// The subscribers by key and manager. Each pair has a row in the database while it has a subscriber.
#[derive(Default)]
pub(super) struct Watchers {
    keys: HashMap<String, Vec<Watched>>,
}

struct Watched {
    manager: Uuid,
    senders: Vec<HintSender>,
    is_registered: bool,
}

impl Watched {
    /// The first hint of a subscriber reports that it is in effect.
    fn hint(&self) {
        if self.is_registered {
            self.senders.iter().for_each(HintSender::hint);
        }
    }
}

impl Watchers {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn add(&mut self, key: &str, manager: Uuid, sender: HintSender) {
        let watched = self.keys.entry(key.to_owned()).or_default();
        match watched.iter_mut().find(|it| it.manager == manager) {
            Some(watched) => watched.senders.push(sender),
            None => watched.push(Watched {
                manager,
                senders: vec![sender],
                is_registered: false,
            }),
        }
    }

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

    /// Notifies the subscribers of a key.
    pub(super) fn released(&self, key: &str) {
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

    /// Drops the subscribers that closed. Returns the pairs without another one.
    pub(super) fn prune(&mut self) -> Vec<(String, Uuid)> {
        let mut ended = Vec::new();
        self.keys.retain(|key, all| {
            all.retain_mut(|watched| {
                watched.senders.retain(|it| !it.is_closed());
                if watched.senders.is_empty() {
                    ended.push((key.clone(), watched.manager));
                }
                !watched.senders.is_empty()
            });
            !all.is_empty()
        });
        ended
    }
}
