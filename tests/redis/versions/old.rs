//! A process of a version without a queue: its scripts, its subscription, its waits.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::{Client, Script};
use tokio::time::timeout;
use uuid::Uuid;

const BODY: &str = "lock:k";
const FENCE: &str = "lock:{fencing-token}%";
const CHANNEL: &str = "redisson_lock__channel:{lock:k}";
const TTL: Duration = Duration::from_secs(30);
/// The longest time between two attempts.
const BACKSTOP: Duration = Duration::from_secs(1);

pub(crate) struct Old {
    commands: MultiplexedConnection,
    client: Client,
    messages: Option<PubSubStream>,
    acquire: Script,
    release: Script,
    keep: Script,
    manager: Uuid,
    leases: u64,
}

/// A held lock.
pub(crate) struct Lease {
    id: String,
    pub(crate) counter: i64,
}

impl Old {
    pub(crate) async fn connect(url: &str) -> Self {
        let client = Client::open(url).unwrap();
        Self {
            commands: client.get_multiplexed_async_connection().await.unwrap(),
            client,
            messages: None,
            acquire: Script::new(include_str!("acquire.lua")),
            release: Script::new(include_str!("release.lua")),
            keep: Script::new(include_str!("keep.lua")),
            manager: Uuid::new_v4(),
            leases: 0,
        }
    }

    /// Attempts, subscribes, attempts again, then waits for a message, the expiry, or the backstop.
    pub(crate) async fn acquire(&mut self) -> Lease {
        loop {
            // Messages of the last acquire.
            while let Some(messages) = &mut self.messages
                && messages.next().now_or_never().is_some()
            {}
            self.leases += 1;
            let id = format!("{}:{}", self.manager, self.leases);
            let mut call = self.acquire.key(BODY);
            call.key(FENCE).arg(&id).arg(TTL.as_millis() as u64);
            let reply: i64 = call.invoke_async(&mut self.commands).await.unwrap();
            if reply < -2 {
                let counter = -2 - reply;
                return Lease { id, counter };
            }
            assert!(reply > 0, "the reply {reply}");
            let Some(messages) = &mut self.messages else {
                let mut subscription = self.client.get_async_pubsub().await.unwrap();
                subscription.subscribe(CHANNEL).await.unwrap();
                self.messages = Some(subscription.into_on_message());
                continue;
            };
            let expired = Duration::from_millis(1 + reply.unsigned_abs());
            // It attempts at once in both cases.
            drop(timeout(expired.min(BACKSTOP), messages.next()).await);
        }
    }

    /// Hands the lock to the next waiter of the process, unless a process outside subscribes. Returns `true` if the
    /// lease goes on.
    pub(crate) async fn keeps(&mut self, lease: &Lease) -> bool {
        let mut call = self.keep.key(BODY);
        call.arg(&lease.id).arg(TTL.as_millis() as u64);
        call.arg(CHANNEL).arg(u8::from(self.messages.is_some()));
        call.invoke_async(&mut self.commands).await.unwrap()
    }

    pub(crate) async fn release(&mut self, lease: Lease) {
        let mut call = self.release.key(BODY);
        call.arg(lease.id).arg(CHANNEL);
        let released: i64 = call.invoke_async(&mut self.commands).await.unwrap();
        assert_eq!(released, 1);
    }
}
