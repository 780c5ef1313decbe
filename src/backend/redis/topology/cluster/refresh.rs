//! The refresh of the map of slots.
//!
//! The map is what two nodes agree on, or else the view that covers the most slots: a node that was cut
//! off reports the past, or a part. The map is suspect after a reply that contradicts it (`MOVED`), or may
//! do so (no reply, no connection, `CLUSTERDOWN`). It is then refreshed at short intervals for a while:
//! a failover ends when a node reports it.
//!
//! An idle process refreshes the map as well, so that its view and the next one have a node in common.

use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use redis::Cmd;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::identity::share;
use super::map::{Map, View, parse};
use super::nodes::Cluster;
use crate::backend::redis::command::{Cause, unavailable, unexpected};
use crate::backend::redis::connection::{Connection, Resend, Running};
use crate::backend::{BackendError, BackendErrorKind};
use crate::jitter::jittered;
use crate::task::{Background, Timer};

/// The interval of refreshes while the map is suspect.
const REFRESH: Duration = Duration::from_millis(200);
/// The interval of refreshes of a map that is not suspect. With its jitter, it is below 30 s.
const LOOK: Duration = Duration::from_secs(27);
/// How long the map stays suspect. This is longer than the pause between two attempts of a waiter, so
/// that the end of a failover is noticed without an attempt.
const SUSPECT: Duration = Duration::from_secs(2);
/// How many nodes are asked concurrently, so that a node that hangs does not delay the others.
const ASKED: usize = 3;

impl Cluster {
    /// Refreshes the map, which may be wrong, in the background.
    pub(crate) fn mark_suspect(&self) {
        *self.suspect_since.lock() = Some(Instant::now());
        self.start();
    }

    fn start(&self) {
        if let Some(running) = self.refreshing.start() {
            Background.spawn(refresh_suspect(Weak::clone(&self.myself), running));
        }
    }

    /// In doubt, a reply of a known node must not be missed, or the time would go on.
    fn is_suspect(&self) -> bool {
        self.identity.is_doubted()
            || self
                .suspect_since
                .lock()
                .is_some_and(|at| at.elapsed() < SUSPECT)
    }

    /// Learns the map before the first command, as [`refresh`](Self::refresh).
    pub(crate) async fn open(&self) -> Result<(), BackendError> {
        let learned = self.refresh().await;
        self.leave_seeds();
        Background.spawn(look(Weak::clone(&self.myself)));
        learned
    }

    /// Asks for the map until two nodes agree, or the other nodes had their time, or all failed.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the map stays as it is.
    async fn refresh(&self) -> Result<(), BackendError> {
        let now = self.map();
        let known = now.nodes.iter().map(|node| &node.connections[0]);
        let mut connections: Vec<_> = known.map(Arc::clone).collect();
        // The first node differs each time, because its view may be stale.
        let first = Uuid::new_v4().as_u128() % connections.len().max(1) as u128;
        connections.rotate_left(usize::try_from(first).unwrap_or(0));
        connections.extend(self.seeds(&now));
        let mut rest = connections.iter();
        let mut replies: FuturesUnordered<_> = rest.by_ref().take(ASKED).map(ask).collect();
        let (mut views, mut foreign) = (Vec::<View>::new(), Vec::new());
        let mut failure = unavailable(Cause::Nowhere);
        // Starts at the first reply, so a node that hangs delays the others by at most this.
        let mut second_opinion = pin!(pending().boxed());
        loop {
            let reply = tokio::select! {
                reply = replies.next() => reply,
                () = &mut second_opinion => None,
            };
            let Some((asked, reply)) = reply else { break };
            if let Ok(view) = &reply
                && !self.identity.shares(&view.ids)
            {
                if let Some(node) = now.node_at(asked.address()) {
                    // Its other links lead to the other cluster as well. New ones are checked.
                    node.connections.iter().for_each(|it| it.leave());
                }
                // The known nodes keep their time to reply.
                foreign.extend(reply);
                replies.extend(rest.next().map(ask));
                continue;
            }
            if reply.is_ok() && views.is_empty() {
                second_opinion.set(Timer::at(Instant::now() + REFRESH).boxed());
            }
            match reply {
                // A node that was cut off, or has just returned, reports the past, or a part.
                Ok(view) if views.iter().any(|it| it.ranges == view.ranges) => {
                    self.learn(&view);
                    return Ok(());
                }
                Ok(view) => views.push(view),
                Err(error) => {
                    failure = error;
                    replies.extend(rest.next().map(ask));
                }
            }
        }
        if let Some(first) = views.first()
            && self.identity.is_unknown()
            && !views.iter().all(|view| share(&view.ids, &first.ids))
        {
            let kind = BackendErrorKind::Misconfigured;
            return Err(BackendError::refused(kind, Cause::SeveralClusters));
        }
        // No two nodes agree, or there is only one.
        let widest = |views: Vec<View>| views.into_iter().max_by_key(covered);
        match (widest(views), widest(foreign)) {
            (Some(view), _) => {
                self.learn(&view);
                Ok(())
            }
            (None, Some(view)) => {
                let replaced = self.replaced_by(&view);
                #[cfg(feature = "tracing")]
                if replaced.is_err() && self.identity.must_log() {
                    tracing::warn!("lock nodes are gone and another cluster replied");
                }
                replaced
            }
            (None, None) => Err(failure),
        }
    }

    /// Learns the view of another cluster if no lease of this one can be left.
    pub(super) fn replaced_by(&self, view: &View) -> Result<(), BackendError> {
        let context = &self.settings.node.context;
        if self.identity.doubt() >= context.longest_lease() {
            self.learn(view);
            return Ok(());
        }
        self.start();
        Err(unavailable(Cause::OtherCluster))
    }

    /// Returns connections to the seeds that are no known nodes. The name of a seed may resolve to another
    /// node by now.
    fn seeds(&self, now: &Map) -> Vec<Arc<Connection>> {
        let mut connections = self.seed_connections.lock();
        connections.retain(|it| now.node_at(it.address()).is_none());
        for seed in &self.settings.seeds {
            let is_known = now.node_at(&seed.address).is_some();
            if !is_known && !connections.iter().any(|it| it.address() == seed.address) {
                connections.push(self.settings.quiet(seed));
            }
        }
        connections.clone()
    }

    /// Closes the connections to the seeds. While the map is suspect, the next refresh needs them.
    fn leave_seeds(&self) {
        self.seed_connections.lock().clear();
    }

    /// Replaces the map.
    fn learn(&self, view: &View) {
        // First, because new links to the nodes are checked.
        self.identity.learn(&view.ids);
        let known = self.map();
        let mut map = Map::default();
        for range in &view.ranges {
            let target = self.target(&range.host, range.port);
            let node = map.node_at(&target.address);
            let node = node.or_else(|| known.node_at(&target.address)).cloned();
            let node = node.unwrap_or_else(|| self.node(&target));
            map.assign(range.first..=range.last, &node);
        }
        let mut current = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, Arc::new(map));
        let recovered = before.is_recovered_by(&current);
        drop(current);
        self.rehouse(&before);
        if recovered {
            self.settings.node.context.recovery.report();
        }
    }
}

async fn ask(connection: &Arc<Connection>) -> (&Arc<Connection>, Result<View, BackendError>) {
    let reply = connection.query(&question(), Resend::Repeatable).await;
    let view = reply.and_then(|reply| {
        parse(&reply, host_of(connection.address())).ok_or_else(|| unexpected(&reply))
    });
    (connection, view)
}

/// Returns the command that asks for a view.
pub(super) fn question() -> Cmd {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    question
}

pub(super) fn host_of(address: &str) -> &str {
    let address = address.rsplit_once(':');
    address.map_or("", |(host, _)| host.trim_matches(['[', ']']))
}

fn covered(view: &View) -> usize {
    view.ranges
        .iter()
        .map(|range| usize::from(range.last - range.first) + 1)
        .sum()
}

/// Refreshes the map of an idle process.
async fn look(cluster: Weak<Cluster>) {
    loop {
        sleep(jittered(LOOK)).await;
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        match cluster.refresh().await {
            Ok(()) => cluster.leave_seeds(),
            Err(_) => cluster.mark_suspect(),
        }
    }
}

/// Refreshes the map while it is suspect.
async fn refresh_suspect(cluster: Weak<Cluster>, running: Running) {
    while let Some(cluster) = cluster.upgrade() {
        if !cluster.is_suspect() {
            cluster.leave_seeds();
            drop(running);
            if cluster.is_suspect() {
                cluster.start();
            }
            return;
        }
        // On an error the map stays suspect.
        drop(cluster.refresh().await);
        drop(cluster);
        sleep(jittered(REFRESH)).await;
    }
}
