//! The minimum that a lock on Redis needs: two scripts on one multiplexed connection. It has no watchdog
//! and no subscription, so it is a bound and not a lock to use. A variant with tower-lock's token shows the
//! cost of a token.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Value};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::scripts::{ACQUIRE, RELEASE};
use crate::work::{Failure, Locks};

pub(super) const LEASE_MILLIS: u32 = 30_000;

/// The longest sleep of a loop between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// The acquire script of tower-lock.
const ACQUIRE_WITH_TOKEN: &str = concat!(
    include_str!("../../../../src/backend/redis/command/lua/fence.lua"),
    include_str!("../../../../src/backend/redis/command/lua/acquire.lua"),
);
pub(super) const COUNTER: &str = "lock:{fencing-token}%";

#[derive(Clone, Copy)]
pub(crate) enum Token {
    None,
    Ours,
}

#[derive(Clone)]
pub(crate) struct Bare {
    connection: MultiplexedConnection,
    scripts: Arc<Scripts>,
    /// The releases that no caller awaits.
    behind: Option<TaskTracker>,
}

/// Longer than the default, because one pause of the machine must not end the contender.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn connect(url: &str, token: Token) -> Result<Bare, Failure> {
    let client = redis::Client::open(url)?;
    Ok(Bare {
        connection: client
            .get_multiplexed_async_connection_with_config(&connection_config())
            .await?,
        scripts: Arc::new(Scripts::new(token)),
        behind: None,
    })
}

/// Scripts without a token, the release of which no caller awaits.
pub(crate) async fn connect_behind(url: &str) -> Result<Bare, Failure> {
    let behind = Some(TaskTracker::new());
    let bare = connect(url, Token::None).await?;
    Ok(Bare { behind, ..bare })
}

pub(crate) fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT))
}

impl Locks for Bare {
    type Held = Held;

    async fn lock(&self, key: &str) -> Result<Held, Failure> {
        let mut connection = self.connection.clone();
        let wanted = self.scripts.want(key);
        while !self.scripts.try_lock(&mut connection, &wanted).await? {
            pause().await;
        }
        Ok(wanted)
    }

    async fn unlock(&self, held: Held) -> Result<(), Failure> {
        let (mut connection, scripts) = (self.connection.clone(), Arc::clone(&self.scripts));
        let released = async move { scripts.unlock(&mut connection, &held).await };
        match &self.behind {
            None => return released.await,
            Some(tasks) => drop(tasks.spawn(async { released.await.expect("it was held") })),
        }
        Ok(())
    }

    async fn settled(&self) {
        if let Some(tasks) = &self.behind {
            tasks.close();
            tasks.wait().await;
            tasks.reopen();
        }
    }
}

/// A random delay, so that waiters do not retry at the same moment.
pub(crate) async fn pause() {
    sleep(LONGEST_PAUSE.mul_f64(fastrand::f64())).await;
}

pub(crate) struct Held {
    pub(super) key: String,
    pub(super) owner: String,
}

/// Read once, by a system call.
static PROCESS: LazyLock<u32> = LazyLock::new(std::process::id);

impl Held {
    /// Each acquire has its own owner, because the scripts grant the same owner twice.
    pub(super) fn new(key: &str, number: u64) -> Self {
        let process = *PROCESS;
        Self {
            key: format!("lock:{key}"),
            owner: format!("7ee9e9e5-56b8-4b3c-9d0b-{process:012x}:{number}"),
        }
    }

    pub(super) fn channel(&self) -> String {
        format!("redisson_lock__channel:{{{}}}", self.key)
    }
}

pub(crate) struct Scripts {
    acquire: redis::Script,
    token: Token,
    release: redis::Script,
    owners: AtomicU64,
}

impl Scripts {
    pub(crate) fn new(token: Token) -> Self {
        Self {
            acquire: redis::Script::new(match token {
                Token::None => ACQUIRE,
                Token::Ours => ACQUIRE_WITH_TOKEN,
            }),
            token,
            release: redis::Script::new(RELEASE),
            owners: AtomicU64::new(0),
        }
    }

    pub(crate) fn want(&self, key: &str) -> Held {
        Held::new(key, self.owners.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) async fn try_lock(
        &self,
        connection: &mut impl ConnectionLike,
        wanted: &Held,
    ) -> Result<bool, Failure> {
        let mut call = self.acquire.key(&wanted.key);
        if let Token::Ours = self.token {
            call.key(COUNTER);
        }
        call.arg(&wanted.owner).arg(LEASE_MILLIS);
        // The reply is nil or a token if the lock is granted, and otherwise the remaining TTL of the
        // holder.
        let answer: Value = call.invoke_async(connection).await?;
        Ok(!matches!(answer, Value::Int(-1..)))
    }

    pub(crate) async fn unlock(
        &self,
        connection: &mut impl ConnectionLike,
        held: &Held,
    ) -> Result<(), Failure> {
        let mut call = self.release.key(&held.key);
        call.key(held.channel());
        call.arg(&held.owner);
        match call.invoke_async(connection).await? {
            1 => Ok(()),
            _ => Err("the lock was not held".into()),
        }
    }
}
