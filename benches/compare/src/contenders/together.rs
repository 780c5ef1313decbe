//! The scripts of tower-lock, with one call for all commands of one moment. It has no queue, no reentrancy,
//! no wait and no watchdog. It shows the cost of the server calls, so it is not a lock to use.

use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisResult, Script, Value};
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::bare::{COUNTER, Held, LEASE_MILLIS, connection_config};
use crate::serving::{PerRequest, fail};
use crate::work::Failure;

const ACQUIRE: &str = concat!(
    include_str!("../../../../src/backend/redis/command/lua/fence.lua"),
    include_str!("../../../../src/backend/redis/command/lua/acquire_all.lua"),
);
const RELEASE: &str = concat!(
    include_str!("../../../../src/backend/redis/command/lua/publish.lua"),
    include_str!("../../../../src/backend/redis/command/lua/release_one.lua"),
    include_str!("../../../../src/backend/redis/command/lua/ended.lua"),
    include_str!("../../../../src/backend/redis/command/lua/release.lua"),
);

/// The reply of `release.lua` to a released lock.
const RELEASED: Value = Value::Int(1);

/// The most calls in flight, and the number of acquires that justifies a second call, as in
/// `src/backend/redis/command/acquire_batch.rs`.
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

impl PerRequest for Together {
    type Held = Held;

    /// Fails if the key is held.
    async fn lock(&self, key: &str) -> Granted {
        let held = Held::new(key, self.0.owners.fetch_add(1, Ordering::Relaxed));
        let (reply, answer) = oneshot::channel();
        self.0.want(|pending| pending.acquires.push((held, reply)));
        answer.await?
    }

    fn unlock_behind(&self, held: Held) {
        self.0.want(|pending| pending.releases.push(held));
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().expect("no holder has panicked")
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
            let answers = self.call(&acquires, &releases).await;
            let answers = answers.unwrap_or_else(|error| fail(&error.to_string()));
            // The first counter alone: all of several are granted.
            let all = matches!(answers[..], [Value::Int(1..)]);
            for (at, (held, reply)) in acquires.into_iter().enumerate() {
                let granted = match answers.get(at) {
                    _ if all => Ok(held),
                    Some(Value::Int(..-2)) => Ok(held),
                    _ => Err(format!("the key is taken: {answers:?}").into()),
                };
                // The waiter was dropped, so the lock is released here.
                if let Err(Ok(held)) = reply.send(granted) {
                    self.pending().releases.push(held);
                }
            }
        }
    }

    /// Returns the replies to the acquires.
    async fn call(
        &self,
        acquires: &[(Held, oneshot::Sender<Granted>)],
        releases: &[Held],
    ) -> RedisResult<Vec<Value>> {
        let mut calls = Pipeline::new();
        if !releases.is_empty() {
            let call = calls.cmd("EVALSHA").arg(self.release.get_hash());
            call.arg(releases.len());
            for held in releases {
                call.arg(&held.key);
            }
            for held in releases {
                call.arg(&held.owner).arg(held.channel());
            }
        }
        if !acquires.is_empty() {
            let call = calls.cmd("EVALSHA").arg(self.acquire.get_hash());
            call.arg(1 + acquires.len()).arg(COUNTER);
            for (held, _) in acquires {
                call.arg(&held.key);
            }
            for (held, _) in acquires {
                call.arg(&held.owner).arg(LEASE_MILLIS);
            }
        }
        let mut connection = self.connection.clone();
        let mut answers: Vec<Value> = calls.query_async(&mut connection).await?;
        let acquired = match acquires {
            [] => None,
            _ => answers.pop(),
        };
        let released = answers.into_iter().flat_map(each);
        if let Some(answer) = released.into_iter().find(|answer| *answer != RELEASED) {
            fail(&format!("a lock was not released: {answer:?}"));
        }
        Ok(acquired.map_or_else(Vec::new, each))
    }
}

/// Returns one reply per key: a call for one key replies without a list.
fn each(answer: Value) -> Vec<Value> {
    match answer {
        Value::Array(answers) => answers,
        answer => vec![answer],
    }
}
