//! Reports of mistakes of the program.

use std::collections::BTreeSet;
use std::fmt::Display;

use crate::mutex::Mutex;

/// The most routes on which one mistake is logged.
const MOST_ROUTES: usize = 100;

/// A mistake that each request to a route repeats: no request through a layer can have a key, or a handler extracts what
/// no layer provides. It is logged once per route, or once if the requests have none.
pub(crate) struct Mistake {
    #[cfg_attr(
        not(feature = "tracing"),
        expect(dead_code, reason = "only events have it")
    )]
    extractor: &'static str,
    routes: Mutex<BTreeSet<String>>,
}

impl Mistake {
    pub(crate) const fn of(extractor: &'static str) -> Self {
        Self {
            extractor,
            routes: Mutex::new(BTreeSet::new()),
        }
    }

    /// Reports a request. The problem includes its remedy.
    pub(crate) fn report(&self, route: Option<&str>, problem: &impl Display) {
        let is_new = self.is_new(route.unwrap_or_default());
        #[cfg(feature = "tracing")]
        if is_new {
            tracing::error!(extractor = self.extractor, route, %problem, "lock layer misconfigured");
        }
    }

    fn is_new(&self, route: &str) -> bool {
        let mut routes = self.routes.lock();
        routes.len() < MOST_ROUTES && !routes.contains(route) && routes.insert(route.to_owned())
    }
}

/// Reports that layers lock two resources by one kind of key, so that they exclude each other.
#[cfg(feature = "axum")]
pub(crate) fn kind_on_two_routes(kind: &str, route: &str, other_route: &str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        kind,
        route,
        other_route,
        "one kind of lock key on two routes"
    );
}

/// Reports the first request for a lock that the program has dropped without an await.
pub(crate) fn not_awaited() {
    #[cfg(feature = "tracing")]
    {
        use std::sync::atomic::{AtomicBool, Ordering};

        static IS_LOGGED: AtomicBool = AtomicBool::new(false);
        if !IS_LOGGED.swap(true, Ordering::Relaxed) {
            tracing::warn!("lock request dropped without an await");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistake_is_logged_on_bounded_routes() {
        let mistake = Mistake::of("Held");
        for route in 0..2 * MOST_ROUTES {
            let route = format!("/{route}");
            let logged = [mistake.is_new(&route), mistake.is_new(&route)];
            assert!(!logged[1], "{route}");
        }
        assert_eq!(mistake.routes.lock().len(), MOST_ROUTES);
    }
}
