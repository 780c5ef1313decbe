//! The handle of a subscription connection.
//!
//! A background task owns the connection. The first watch starts the task, which ends some seconds after
//! the last waiter left.

use std::sync::Arc;

use futures_util::TryFutureExt as _;
use futures_util::future::try_join_all;

use super::pub_sub::{PubSub, ask};
use super::shared::Shared;
use super::subscription::Watcher;
use super::task::Task;
use crate::backend::BackendError;
use crate::backend::redis::connection::{ClientContext, Locate, in_background, within};

/// Notifies waiters of releases. If dropped, the task ends.
pub(crate) struct Notifier {
    shared: Arc<Shared>,
}

impl Notifier {
    pub(crate) fn new(
        context: Arc<ClientContext>,
        server: Option<Arc<dyn Locate>>,
        kinds: &'static [PubSub],
    ) -> Self {
        Self {
            shared: Arc::new(Shared::new(context, server, kinds)),
        }
    }

    /// Watches a channel.
    pub(crate) fn watch(&self, channel: String, waiters: Vec<Watcher>) {
        let mut topics = self.shared.topics.lock();
        topics.watch(channel, waiters);
        let start = !std::mem::replace(&mut topics.running, true);
        drop(topics);
        if start {
            Task::start(&self.shared);
        } else {
            self.shared.changed.notify_one();
        }
    }

    /// Unsubscribes from the channels that do not live here, returns their waiters, and subscribes again to
    /// rejected channels that do live here.
    pub(crate) fn detach_foreign(
        &self,
        lives_here: impl Fn(&str) -> bool,
    ) -> Vec<(String, Vec<Watcher>)> {
        let mut topics = self.shared.topics.lock();
        let detached = topics.detach_foreign(lives_here);
        drop(topics);
        self.shared.changed.notify_one();
        detached
    }

    /// Returns how many of a channel's subscribers at the server belong to this process, which has no
    /// waiter for it unless another manager over this backend does. Returns `None` without a subscription.
    pub(crate) fn own_subscribers(&self, channel: &str) -> Option<u8> {
        self.shared.server.as_ref()?;
        match self.shared.topics.lock().lingers(channel) {
            true => u8::try_from(self.shared.kinds.len()).ok(),
            false => Some(0),
        }
    }

    /// Returns `true` if the server has confirmed the subscription of a channel.
    pub(crate) fn is_subscribed(&self, channel: &str) -> bool {
        self.shared.topics.lock().is_confirmed(channel)
    }

    /// Returns the name of the server for errors and logs.
    pub(crate) fn address(&self) -> &str {
        let server = self.shared.server.as_ref();
        server.map_or("", |it| it.address())
    }

    /// Opens a connection within the connect timeout, sends each command once, within the response timeout, and closes
    /// the connection.
    pub(crate) async fn try_out(&self, channel: &str) -> Result<(), BackendError> {
        if self.shared.server.is_none() {
            return Ok(());
        }
        let (shared, channel) = (Arc::clone(&self.shared), channel.to_owned());
        // Like the subscriptions later, which need no I/O of the caller's runtime.
        in_background(async move {
            let limit = shared.context.connect_timeout;
            let messages = within(limit, shared.listen(false, false)).await?;
            let commands = shared.kinds.iter().flat_map(|kind| {
                let subscribe = kind.subscribe(&channel);
                [subscribe, redis::cmd("PING"), kind.unsubscribe(&channel)]
            });
            let commands: Vec<_> = commands.collect();
            let asked = commands.iter().map(|it| ask(&messages.connection, it));
            shared
                .replied(try_join_all(asked).err_into())
                .await
                .map(drop)
        })
        .await
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.shared.topics.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests;
