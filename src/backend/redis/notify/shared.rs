//! What the handle and the task of a subscription connection share.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::pub_sub::{PubSub, still_leads_there};
use super::topics::Topics;
use crate::backend::outage::Outage;
use crate::backend::redis::command::{Cause, unavailable};
use crate::backend::redis::connection::{ClientContext, Locate, Messages, listen};
use crate::backend::{BackendError, Hints};
use crate::mutex::Mutex;
use crate::observe::Part;

pub(super) struct Shared {
    pub(super) context: Arc<ClientContext>,
    /// The server to subscribe at. Without one, waiters are notified at intervals.
    pub(super) server: Option<Arc<dyn Locate>>,
    /// The kinds of messages. Each channel is subscribed to once per kind.
    pub(super) kinds: &'static [PubSub],
    pub(super) topics: Mutex<Topics>,
    /// A message arrived since the task last asked.
    pub(super) heard: AtomicBool,
    /// Notified when a channel is to be subscribed or unsubscribed, or the notifier was dropped.
    pub(super) changed: Notify,
    pub(super) outage: Outage,
}

impl Shared {
    pub(super) fn new(
        context: Arc<ClientContext>,
        server: Option<Arc<dyn Locate>>,
        kinds: &'static [PubSub],
    ) -> Self {
        let address = server.as_ref().map_or("", |it| it.address());
        let outage = Outage::new(
            Part::Notifications,
            "release notifications unavailable",
            "release notifications available again",
            address,
        );
        Self {
            context,
            server,
            kinds,
            topics: Mutex::default(),
            heard: AtomicBool::new(false),
            changed: Notify::new(),
            outage,
        }
    }

    /// Completes within the response timeout, like the commands of locks.
    pub(super) async fn replied<T>(
        &self,
        reply: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let limit = self.context.response_timeout;
        match timeout(limit, reply).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => Err(unavailable(Cause::NoReply(limit))),
        }
    }

    /// Opens a subscription connection, whose reader may poll waiters if it is `near` the callers. The caller sets the time
    /// limit.
    pub(super) async fn listen(
        self: &Arc<Self>,
        again: bool,
        near: bool,
    ) -> Result<Messages, BackendError> {
        let shared = Arc::clone(self);
        match &self.server {
            Some(server) => {
                let receive = move |pushed: &_| shared.receive(pushed, near);
                listen(&**server, again, receive).await
            }
            None => Err(unavailable(Cause::Nowhere)),
        }
    }

    /// Dispatches a message of a channel, in the task that drives the connection: a change of tasks would delay its
    /// waiter. Returns `false` for any other push message, whose order among the replies matters.
    ///
    /// Near the callers, the waiter is polled at once. Its poll may run code of the program, such as a subscriber of logs,
    /// which must not block the thread of this crate.
    pub(super) fn receive(&self, pushed: &PushInfo, near: bool) -> bool {
        let is_message = matches!(pushed.kind, PushKind::Message | PushKind::SMessage);
        if is_message {
            self.heard.store(true, Ordering::Relaxed);
            let (name, text) = (text_of(pushed, 0), bytes_of(pushed, 1));
            // The mutex is free again: the poll of a waiter locks it.
            let receivers = self.topics.lock().receivers(&name, text);
            if let Some((hint, receivers)) = receivers {
                receivers.iter().for_each(|it| match near {
                    true => it.send_and_poll(hint),
                    false => it.send(hint),
                });
            }
        }
        is_message
    }

    /// Completes when the connection is dead, or leads to a server that was replaced.
    ///
    /// Commands fail on a dead connection, and report a recovery after they reconnected. A subscription
    /// expects no reply, and would be silent until its next `PING`.
    pub(super) async fn left_behind(
        &self,
        recoveries: &mut Hints,
        (connection, address): (MultiplexedConnection, String),
    ) -> BackendError {
        loop {
            recoveries.next().await;
            if let Some(server) = &self.server
                && server.has_left(&address)
            {
                return unavailable(Cause::NotPrimary);
            }
            if let Err(error) = self.replied(still_leads_there(&connection)).await {
                return error;
            }
        }
    }

    /// Reports that another cluster node may have a channel.
    pub(super) fn report_moved(&self) {
        if let Some(server) = &self.server {
            server.channels_moved();
        }
    }
}

fn bytes_of(pushed: &PushInfo, index: usize) -> &[u8] {
    match pushed.data.get(index) {
        Some(Value::BulkString(bytes)) => bytes,
        _ => &[],
    }
}

/// Returns a part of a push message as text.
pub(super) fn text_of(pushed: &PushInfo, index: usize) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes_of(pushed, index))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use uuid::Uuid;

    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::backend::Hint;
    use crate::backend::redis::notify::{Recovery, Watcher};

    fn pushed(kind: PushKind, channel: &str, text: &str) -> PushInfo {
        let part = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let data = vec![part(channel), part(text)];
        PushInfo { kind, data }
    }

    #[test]
    fn message_is_dispatched_by_its_receiver() {
        let context = ClientContext {
            connect_timeout: Duration::ZERO,
            response_timeout: Duration::ZERO,
            near: Mutex::default(),
            recovery: Recovery::default(),
            longest_lease: AtomicU64::default(),
        };
        let shared = Shared::new(Arc::new(context), None, &[PubSub::Plain]);
        let (sender, mut hints) = Hints::channel();
        let manager = Some(Uuid::nil());
        let watchers = vec![Watcher { manager, sender }];
        shared.topics.lock().watch("k".to_owned(), watchers);
        for kind in [PushKind::Message, PushKind::SMessage] {
            assert!(shared.receive(&pushed(kind, "k", "0"), false));
            assert_eq!(hints.next().now_or_never(), Some(Hint::Released));
            assert!(shared.heard.swap(false, Ordering::Relaxed));
        }
        for kind in [PushKind::SUnsubscribe, PushKind::Disconnection] {
            assert!(!shared.receive(&pushed(kind, "k", "0"), false));
        }
        assert_eq!(hints.next().now_or_never(), None);
        assert!(!shared.heard.load(Ordering::Relaxed));
    }
}
