//! Permits whose holders count themselves in Redis, over all processes. A client fails if it counts more than the
//! limit.

use redis::aio::MultiplexedConnection;

use super::PERMITS;
use super::bare::connection_config;
use crate::work::{Failure, Locks};

#[derive(Clone)]
pub(crate) struct Counted<L> {
    locks: L,
    counts: MultiplexedConnection,
}

pub(crate) async fn connect<L>(url: &str, locks: L) -> Result<Counted<L>, Failure> {
    let client = redis::Client::open(url)?;
    let config = connection_config();
    let counts = client.get_multiplexed_async_connection_with_config(&config);
    Ok(Counted {
        locks,
        counts: counts.await?,
    })
}

impl<L: Locks> Locks for Counted<L> {
    type Held = (L::Held, String);

    async fn lock(&self, key: &str) -> Result<Self::Held, Failure> {
        let held = self.locks.lock(key).await?;
        let count = format!("holders of {key}");
        // The server counts after the grant, and counts down before the release.
        match self.count("INCR", &count).await? {
            holders if holders > i64::from(PERMITS) => Err(format!("{holders} holders").into()),
            _ => Ok((held, count)),
        }
    }

    async fn unlock(&self, (held, count): Self::Held) -> Result<(), Failure> {
        self.count("DECR", &count).await?;
        self.locks.unlock(held).await
    }

    async fn settled(&self) {
        self.locks.settled().await;
    }
}

impl<L> Counted<L> {
    async fn count(&self, command: &str, count: &str) -> Result<i64, Failure> {
        let mut counts = self.counts.clone();
        Ok(redis::cmd(command)
            .arg(count)
            .query_async(&mut counts)
            .await?)
    }
}
