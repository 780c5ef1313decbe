//! A process that knows version 1 of the schema in PostgreSQL: it has no queue, and calls the functions of that version.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::poll_fn;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, NoTls};
use uuid::Uuid;

/// The script of that version.
pub(crate) const OLD: &str = include_str!("../postgres/version_1.sql");

/// The longest time between two attempts, as after a lost notification.
const BACKSTOP: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(4);

pub(crate) struct OldProcess {
    client: Client,
    notifications: UnboundedReceiver<String>,
    channel: String,
    manager: String,
    leases: u64,
}

impl OldProcess {
    pub(crate) async fn start(url: &str) -> Self {
        let connected = tokio_postgres::connect(url, NoTls).await;
        let (client, mut connection) = connected.expect("the server is there");
        let (sender, notifications) = unbounded_channel();
        tokio::spawn(async move {
            let mut messages = pin!(poll_fn(move |cx| connection.poll_message(cx)));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(it) = message {
                    drop(sender.send(it.payload().to_owned()));
                }
            }
        });
        let channel = format!("tower_lock_{}", Uuid::new_v4().simple());
        let listen = format!("LISTEN {channel}");
        client.batch_execute(&listen).await.expect("it listens");
        Self {
            client,
            notifications,
            channel,
            manager: Uuid::new_v4().to_string(),
            leases: 0,
        }
    }

    fn lease(&self) -> String {
        format!("{}:{}", self.manager, self.leases)
    }

    /// Waits for a key. Returns the token of a grant.
    pub(crate) async fn acquire(&mut self, key: &str) -> Option<i64> {
        self.leases += 1;
        let deadline = Instant::now() + WAIT;
        let mut token = self.attempt(key).await;
        if token.is_some() {
            return token;
        }
        self.call("SELECT tower_lock.watch($1, $2, $3)", key).await;
        let text = format!("r {key}");
        while Instant::now() < deadline {
            token = self.attempt(key).await;
            if token.is_some() {
                break;
            }
            let released =
                async { while self.notifications.recv().await.is_some_and(|it| it != text) {} };
            drop(timeout(BACKSTOP, released).await);
        }
        self.call("SELECT tower_lock.unwatch($1, $2, $3)", key)
            .await;
        token
    }

    async fn call(&self, statement: &str, key: &str) {
        let parameters: [&(dyn ToSql + Sync); 3] = [&key, &self.manager, &self.channel];
        let reply = self.client.query(statement, &parameters).await;
        reply.expect("a reply");
    }

    async fn attempt(&self, key: &str) -> Option<i64> {
        let attempt = "SELECT counter FROM tower_lock.acquire_one($1, $2, 'x', 20000,
            extract(epoch FROM clock_timestamp() + '1 s')::float8, true, true)";
        let row = self.client.query_one(attempt, &[&key, &self.lease()]).await;
        let counter: Option<i64> = row.expect("a reply").get(0);
        counter.map(|it| it * 256)
    }

    pub(crate) async fn release(&self, key: &str) {
        let release = "SELECT tower_lock.release_one($1, $2)";
        let row = self.client.query_one(release, &[&key, &self.lease()]).await;
        assert!(row.expect("a reply").get::<_, bool>(0), "it is held");
    }
}
