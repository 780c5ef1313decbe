//! A process of a version in which the message of a transfer was the grant: its scripts, its subscription, its waits.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::{Client, Script, Value};
use tokio::time::timeout;
use uuid::Uuid;

const BODY: &str = "lock:k";
const QUEUE: &str = "lock:{lock:k}%queue";
const FENCE: &str = "lock:{fencing-token}%";
const CHANNEL: &str = "redisson_lock__channel:{lock:k}";
const TTL: Duration = Duration::from_secs(30);
const REFRESH: Duration = Duration::from_secs(1);

pub(crate) struct Granting {
    commands: MultiplexedConnection,
    messages: PubSubStream,
    contend: Script,
    release: Script,
    manager: Uuid,
    leases: u64,
    /// The number of leases that a message granted.
    pub(crate) by_message: u32,
    /// The number of messages without a counter, whose transfers a command confirmed.
    pub(crate) confirmed: u32,
}

/// A held lock.
pub(crate) struct Lease {
    id: String,
    pub(crate) counter: i64,
}

impl Granting {
    pub(crate) async fn connect(url: &str) -> Self {
        let client = Client::open(url).unwrap();
        let manager = Uuid::new_v4();
        let mut subscription = client.get_async_pubsub().await.unwrap();
        // In the order of the crate, whose scripts count the first as well.
        for channel in [
            format!("{CHANNEL}%w"),
            CHANNEL.to_owned(),
            format!("{CHANNEL}%{manager}"),
        ] {
            subscription.subscribe(channel).await.unwrap();
        }
        Self {
            commands: client.get_multiplexed_async_connection().await.unwrap(),
            messages: subscription.into_on_message(),
            contend: Script::new(include_str!("granting/contend.lua")),
            release: Script::new(include_str!("granting/release.lua")),
            manager,
            leases: 0,
            by_message: 0,
            confirmed: 0,
        }
    }

    /// Enters the queue, and waits for the message of a transfer. Its counter makes it a grant if it is larger than that
    /// of the last reply. Otherwise, a command confirms the transfer.
    pub(crate) async fn acquire(&mut self) -> Lease {
        // Messages of the last acquire.
        while self.messages.next().now_or_never().is_some() {}
        self.leases += 1;
        let id = format!("{}:{}", self.manager, self.leases);
        loop {
            let mut call = self.contend.key(BODY);
            call.key(QUEUE).key(FENCE);
            call.arg(&id).arg(TTL.as_millis() as u64).arg(CHANNEL);
            call.arg("!").arg(0);
            let reply: Value = call.invoke_async(&mut self.commands).await.unwrap();
            let numbers: Vec<i64> = match &reply {
                Value::Int(number) => vec![*number],
                reply => redis::from_redis_value(reply.clone()).unwrap(),
            };
            let (left, last) = match numbers[..] {
                [granted, ..] if granted < -2 => {
                    let counter = -2 - granted;
                    return Lease { id, counter };
                }
                [left, _, _, _, last, _] if left > 0 => (left, last),
                _ => panic!("the reply {reply:?}"),
            };
            let again = REFRESH.min(Duration::from_millis(1 + left.unsigned_abs()));
            if let Ok(counter) = timeout(again, self.transferred(&id)).await {
                match counter {
                    Some(counter) if counter > last => {
                        self.by_message += 1;
                        return Lease { id, counter };
                    }
                    _ => self.confirmed += 1,
                }
            }
        }
    }

    /// Returns the counter in the message of a transfer to this lease.
    async fn transferred(&mut self, id: &str) -> Option<i64> {
        loop {
            let message = self.messages.next().await.expect("a connection");
            let text: String = message.get_payload().unwrap();
            match text.split_once(' ') {
                Some((lease, counter)) if lease == id => return Some(counter.parse().unwrap()),
                None if text == id => return None,
                _ => {}
            }
        }
    }

    pub(crate) async fn release(&mut self, lease: Lease) {
        let mut call = self.release.key(BODY);
        call.key(QUEUE).arg(lease.id).arg(CHANNEL);
        let released: i64 = call.invoke_async(&mut self.commands).await.unwrap();
        assert!(released > 0, "the reply {released}");
    }
}
