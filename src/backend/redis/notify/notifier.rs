//! The handle of a subscription connection.
//!
//! A background task owns the connection: started by the first watch, gone some seconds after the
//! last watcher left, restarted by the next watch if it died with its runtime.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;

use super::pub_sub::{PubSub, ask, ping};
use super::task::Task;
use super::topics::Topics;
use crate::backend::redis::command::{Cause, CommandError};
use crate::backend::redis::connection::{Messages, Network, Outage, Target, listen, within};
use crate::backend::redis::topology::{Cluster, Sentinels, require_primary};
use crate::backend::{BackendError, HintSender, Hints};

/// Tells watchers when to try. Dropping it ends the task, whoever still watches.
pub(crate) struct Notifier {
    shared: Arc<Shared>,
}

/// Where releases are heard.
#[derive(Clone)]
pub(crate) enum Endpoint {
    Server(Target),
    /// At the primary of the moment.
    Sentinel(Arc<Sentinels>),
    /// At a node of a cluster, which has some of the channels.
    ///
    /// Plain messages could be heard at any node. But what is published at another comes late:
    /// nodes hold back small messages to each other, by Nagle's algorithm, for up to 40 ms.
    Node(Target, Weak<Cluster>),
}

pub(super) struct Shared {
    pub(super) network: Arc<Network>,
    /// `None`: nothing to subscribe to, watchers are told at intervals.
    pub(super) endpoint: Option<Endpoint>,
    /// By which commands each channel is subscribed to.
    pub(super) kinds: &'static [PubSub],
    /// For the logs.
    pub(super) address: String,
    topics: Mutex<Topics>,
    /// There are topics to subscribe to or to leave, or the notifier was dropped.
    pub(super) changed: Notify,
    pub(super) outage: Outage,
}

impl Notifier {
    pub(crate) fn new(
        network: Arc<Network>,
        endpoint: Option<Endpoint>,
        kinds: &'static [PubSub],
    ) -> Self {
        let address = match &endpoint {
            Some(Endpoint::Server(target) | Endpoint::Node(target, _)) => target.address.clone(),
            Some(Endpoint::Sentinel(sentinels)) => sentinels.address.clone(),
            None => String::new(),
        };
        // Waiters fall back to polling.
        let outage = Outage::new(
            "release notifications unavailable",
            "release notifications available again",
            &address,
        );
        Self {
            shared: Arc::new(Shared {
                network,
                endpoint,
                kinds,
                address,
                topics: Mutex::default(),
                changed: Notify::new(),
                outage,
            }),
        }
    }

    /// Watches a channel.
    pub(crate) fn watch(&self, channel: String, watchers: Vec<HintSender>) {
        let mut topics = self.shared.topics();
        topics.watch(channel, watchers);
        let start = !std::mem::replace(&mut topics.running, true);
        drop(topics);
        if start {
            self.shared
                .network
                .spawner
                .spawn(Task::new(&self.shared).run());
        } else {
            self.shared.changed.notify_one();
        }
    }

    /// Takes away the watchers of all channels that do not live here, unsubscribes from those, and
    /// wants those again that do and have been refused.
    pub(crate) fn evict(
        &self,
        lives_here: impl Fn(&str) -> bool,
    ) -> Vec<(String, Vec<HintSender>)> {
        let mut topics = self.shared.topics();
        let evicted = topics.evict(lives_here);
        drop(topics);
        self.shared.changed.notify_one();
        evicted
    }

    /// How many of the channel's subscribers the server counts wait for nothing: our own, unless another
    /// manager over this backend waits. `None` if the server cannot know who watches.
    pub(crate) fn own_subscribers(&self, channel: &str) -> Option<u8> {
        let kinds = self.shared.kinds;
        match self.shared.endpoint.as_ref()? {
            // Others may hear plain messages at another node, which is not asked.
            Endpoint::Node(..) if kinds.contains(&PubSub::Plain) => None,
            _ if self.shared.topics().lingers(channel) => u8::try_from(kinds.len()).ok(),
            _ => Some(0),
        }
    }

    /// Where it subscribes.
    pub(crate) fn address(&self) -> &str {
        &self.shared.address
    }

    /// Opens a connection, sends once whatever will be sent over such a one and closes it, within the
    /// connect timeout: what a self-test can learn.
    pub(crate) async fn try_out(&self, channel: &str) -> Result<(), BackendError> {
        if self.shared.endpoint.is_none() {
            return Ok(());
        }
        let trial = async {
            let messages = self.shared.listen().await?;
            for kind in self.shared.kinds {
                ask(&messages.connection, &kind.subscribe(channel)).await?;
                ping(&messages.connection).await?;
                ask(&messages.connection, &kind.unsubscribe(channel)).await?;
            }
            Ok(())
        };
        within(self.shared.network.connect_timeout, trial).await
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.shared.topics().closed = true;
        self.shared.changed.notify_one();
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier")
            .field("channels", &self.shared.topics().len())
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn topics(&self) -> MutexGuard<'_, Topics> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn within<T>(
        &self,
        answer: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        within(self.network.connect_timeout, answer).await
    }

    /// A new connection to where releases are heard. Bounded by the caller.
    pub(super) async fn listen(&self) -> Result<Messages, BackendError> {
        let nowhere = || BackendError::from(CommandError::unavailable(Cause::Nowhere));
        match self.endpoint.as_ref().ok_or_else(nowhere)? {
            Endpoint::Server(target) | Endpoint::Node(target, _) => listen(target).await,
            Endpoint::Sentinel(sentinels) => {
                let open = |primary| async move {
                    let messages = listen(&primary).await?;
                    require_primary(messages.connection.clone()).await?;
                    Ok(messages)
                };
                sentinels.primary(open).await
            }
        }
    }

    /// Waits until the connection turns out to be dead, or to lead to a server that was replaced.
    ///
    /// Commands find out by themselves, and tell when they found their way again. A subscription
    /// has no reason to expect an answer, and would be silent until its next `PING`.
    pub(super) async fn left_behind(
        &self,
        recoveries: &mut Hints,
        (connection, address): (MultiplexedConnection, String),
    ) -> BackendError {
        loop {
            recoveries.next().await;
            if let Some(Endpoint::Sentinel(sentinels)) = &self.endpoint
                && sentinels.have_left(&address)
            {
                return CommandError::unavailable(Cause::NotPrimary).into();
            }
            let alive = within(self.network.response_timeout, ping(&connection));
            if let Err(error) = alive.await {
                return error;
            }
        }
    }

    /// A node says that it does not have a channel.
    pub(super) fn mark_suspect(&self) {
        if let Some(Endpoint::Node(_, cluster)) = &self.endpoint
            && let Some(cluster) = cluster.upgrade()
        {
            cluster.mark_suspect();
        }
    }
}
