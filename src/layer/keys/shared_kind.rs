//! Reports one kind of key on routes of two resources: `/orders/{id}` and `/customers/{id}` exclude each other.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use uuid::Uuid;

use crate::mutex::Mutex;
use crate::observe;

/// The most kinds that are compared, over all managers of the process.
const MOST_KINDS: usize = 1_000;

/// The routes on which layers of this process have locked, by manager and kind: the first one, or `None` after a report.
static KINDS: Mutex<BTreeMap<(Uuid, String), Option<String>>> = Mutex::new(BTreeMap::new());

/// The kind of the keys of one layer: names of path parameters.
pub(super) struct SharedKind {
    kind: String,
    /// The last one of the names.
    name: String,
    /// The first route of this layer.
    first: OnceLock<String>,
    is_done: AtomicBool,
}

impl SharedKind {
    pub(super) fn of(names: &[&str]) -> Option<Self> {
        Some(Self {
            kind: names.join(", "),
            name: (*names.last()?).to_owned(),
            first: OnceLock::new(),
            is_done: AtomicBool::new(false),
        })
    }

    /// Compares the route of a request that locks with those of earlier ones.
    pub(super) fn check(&self, manager: Uuid, route: &str) {
        let first = self.first.get();
        let is_known = |first: &String| {
            first == route || resource(first, &self.name) == resource(route, &self.name)
        };
        if first.is_some_and(is_known) || self.is_done.load(Ordering::Relaxed) {
            return;
        }
        self.compare(manager, route);
    }

    #[cold]
    fn compare(&self, manager: Uuid, route: &str) {
        let is_first = self.first.set(route.to_owned()).is_ok();
        let mut kinds = KINDS.lock();
        let key = (manager, self.kind.clone());
        if kinds.len() >= MOST_KINDS && !kinds.contains_key(&key) {
            return;
        }
        let known = kinds.entry(key).or_insert_with(|| Some(route.to_owned()));
        let is_other =
            |known: &mut String| resource(known, &self.name) != resource(route, &self.name);
        if let Some(other) = known.take_if(is_other) {
            observe::kind_on_two_routes(&self.kind, route, &other);
        }
        if known.is_none() || !is_first {
            self.is_done.store(true, Ordering::Relaxed);
        }
    }
}

/// Returns the route in front of the parameter. Routes that differ only behind it, such as `/orders/{id}/lines`, are of
/// one resource, and share its locks on purpose.
fn resource<'r>(route: &'r str, name: &str) -> &'r str {
    let parameters = [format!("{{{name}}}"), format!("{{*{name}}}")];
    let at = parameters.iter().find_map(|it| route.find(it.as_str()));
    &route[..at.unwrap_or(route.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_is_route_before_parameter() {
        for (route, expected) in [
            ("/orders/{id}", "/orders/"),
            ("/orders/{id}/lines/{line}", "/orders/"),
            ("/v1/orders/{id}", "/v1/orders/"),
            ("/files/{*id}", "/files/"),
            ("/x-{id}", "/x-"),
            ("/{id}", "/"),
            ("/shops/{shop}/{id}", "/shops/{shop}/"),
        ] {
            assert_eq!(resource(route, "id"), expected, "{route}");
        }
    }
}
