//! The scripts of tower-lock, for all that is wanted at one moment in one call, and nothing else: no
//! queue of a key, no owner, no wait, no watchdog. What asks the server as tower-lock does cannot do
//! less: the limit, not a lock to use.

use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Script, Value};
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::bare::{COUNTER, LEASE_MILLIS, connection_config};
use crate::work::{Failure, Locks};

const ACQUIRE: &str = concat!(
    include_str!("../../../../src/backend/redis/scripts/fence.lua"),
    include_str!("../../../../src/backend/redis/scripts/acquire_all.lua"),
);
const RELEASE: &str = concat!(
    include_str!("../../../../src/backend/redis/scripts/tell.lua"),
    include_str!("../../../../src/backend/redis/scripts/release.lua"),
);

/// Answered by `acquire_all.lua` for a lock that is granted.
const GRANTED: Value = Value::Int(-3);

/// As tower-lock: how many calls are under way, and for how many acquires there is a second one.
const SENDERS: usize = 2;
const WORTH_A_CALL: usize = 16;

#[derive(Clone)]
pub(crate) struct Together(Arc<Shared>);

struct Shared {
    connection: MultiplexedConnection,
    acquire: Script,
    release: Script,
    owners: AtomicU64,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    acquires: Vec<(Held, oneshot::Sender<Granted>)>,
    releases: Vec<Held>,
    senders: usize,
}

type Granted = Result<Held, Failure>;

pub(crate) struct Held {
    key: String,
    owner: String,
}

pub(crate) async fn connect(url: &str) -> Result<Together, Failure> {
    let client = redis::Client::open(url)?;
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&connection_config())
        .await?;
    let (acquire, release) = (Script::new(ACQUIRE), Script::new(RELEASE));
    for script in [&acquire, &release] {
        script.load_async(&mut connection).await?;
    }
    Ok(Together(Arc::new(Shared {
        connection,
        acquire,
        release,
        owners: AtomicU64::new(0),
        pending: Mutex::default(),
    })))
}

impl Locks for Together {
    type Held = Held;

    /// Fails where the key is taken.
    async fn lock(&self, key: &str) -> Granted {
        let owner = self.0.owners.fetch_add(1, Ordering::Relaxed);
        let held = Held {
            key: format!("lock:{key}"),
            owner: format!(
                "7ee9e9e5-56b8-4b3c-9d0b-{:012x}:{owner}",
                std::process::id()
            ),
        };
        let (reply, answer) = oneshot::channel();
        self.0.want(|pending| pending.acquires.push((held, reply)));
        answer.await?
    }

    async fn unlock(&self, held: Held) -> Result<(), Failure> {
        self.unlock_behind(held);
        Ok(())
    }

    fn unlock_behind(&self, held: Held) {
        self.0.want(|pending| pending.releases.push(held));
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().expect("nobody has panicked")
    }

    fn want(self: &Arc<Self>, what: impl FnOnce(&mut Pending)) {
        let mut pending = self.pending();
        what(&mut pending);
        let many = pending.acquires.len() >= WORTH_A_CALL && pending.senders < SENDERS;
        if pending.senders == 0 || many {
            pending.senders += 1;
            tokio::spawn(Arc::clone(self).send_all());
        }
    }

    async fn send_all(self: Arc<Self>) {
        loop {
            yield_now().await;
            let (acquires, releases) = {
                let mut pending = self.pending();
                if pending.acquires.is_empty() && pending.releases.is_empty() {
                    pending.senders -= 1;
                    return;
                }
                (take(&mut pending.acquires), take(&mut pending.releases))
            };
            let mut answers = self.call(&acquires, &releases).await;
            for (at, (held, reply)) in acquires.into_iter().enumerate() {
                let granted = match &mut answers {
                    Err(error) => Err(error.clone().into()),
                    // The first is the counter.
                    Ok(answers) if answers.get(at + 1) == Some(&GRANTED) => Ok(held),
                    Ok(answers) => Err(format!("the key is taken: {answers:?}").into()),
                };
                // Nobody waits any more, and nobody would give it back.
                if let Err(Ok(held)) = reply.send(granted) {
                    self.pending().releases.push(held);
                }
            }
        }
    }

    /// The answers to the acquires.
    async fn call(
        &self,
        acquires: &[(Held, oneshot::Sender<Granted>)],
        releases: &[Held],
    ) -> redis::RedisResult<Vec<Value>> {
        let mut calls = Pipeline::new();
        if !releases.is_empty() {
            let call = calls.cmd("EVALSHA").arg(self.release.get_hash());
            call.arg(releases.len());
            for held in releases {
                call.arg(&held.key);
            }
            for Held { key, owner } in releases {
                call.arg(owner)
                    .arg(format!("redisson_lock__channel:{{{key}}}"));
            }
            call.ignore();
        }
        if acquires.is_empty() {
            return calls
                .exec_async(&mut self.connection.clone())
                .await
                .map(|()| Vec::new());
        }
        let call = calls.cmd("EVALSHA").arg(self.acquire.get_hash());
        call.arg(1 + acquires.len()).arg(COUNTER);
        for (held, _) in acquires {
            call.arg(&held.key);
        }
        for (held, _) in acquires {
            call.arg(&held.owner).arg(LEASE_MILLIS);
        }
        let (answers,) = calls.query_async(&mut self.connection.clone()).await?;
        Ok(answers)
    }
}
