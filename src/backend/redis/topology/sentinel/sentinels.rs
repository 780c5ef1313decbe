//! Which server is the primary of a service, as the sentinels know it.
//!
//! Asked anew for every connection: the address of yesterday may be a replica today. A sentinel that
//! was cut off names the primary of before, so what most of them say counts, and the server itself
//! has to say that it is one.
//!
//! Asked again and again while anybody holds or waits: after a failover the old primary, if it is
//! alive, takes itself for one until it is told otherwise, ten seconds later or more. Whatever it
//! grants or renews until then is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Client, RedisConnectionInfo, RedisError};
use tokio::time::{Instant, sleep, timeout_at};

use crate::backend::redis::command::{Cause, check, kind_of_connecting};
use crate::backend::redis::connection::{Network, Outage, Target};
use crate::backend::redis::self_test::entry;
use crate::backend::{BackendError, BackendErrorKind};
use crate::jitter::jittered;

use super::votes::{Named, Votes};

/// How often the sentinels are asked while a connection does not come about, as with a primary that
/// stands still: it accepts connections and says nothing. And how often while anybody holds or waits.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

pub(crate) struct Sentinels {
    sentinels: Vec<Sentinel>,
    service: String,
    /// What to call the service in errors and logs.
    pub(crate) address: String,
    /// The login of the primary, wherever that is.
    login: Target,
    network: Arc<Network>,
    /// What more than half of them named last.
    primary: Mutex<Option<String>>,
    looking: AtomicBool,
    outage: Outage,
}

struct Sentinel {
    target: Target,
    /// Kept, since the same is asked again soon.
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Sentinels {
    /// `targets` name the sentinels and hold the login of the primary, which is none of theirs:
    /// they have their own, or none.
    pub(crate) fn new(
        targets: Vec<Target>,
        service: String,
        login: RedisConnectionInfo,
        network: Arc<Network>,
    ) -> Self {
        let sentinel = |target: &Target| Sentinel {
            target: Target {
                info: target.info.clone().set_redis_settings(login.clone()),
                address: target.address.clone(),
            },
            connection: Mutex::default(),
        };
        let address = address(&targets, &service);
        let outage = Outage::new(
            "sentinels unavailable",
            "sentinels available again",
            &address,
        );
        Self {
            sentinels: targets.iter().map(sentinel).collect(),
            login: targets[0].clone(),
            service,
            address,
            network,
            primary: Mutex::default(),
            looking: AtomicBool::new(false),
            outage,
        }
    }

    /// Opens a connection to the primary, and to the next one if the primary moves meanwhile.
    /// Bounded by the caller.
    ///
    /// # Cancel safety
    ///
    /// A connection that was about to open is closed.
    pub(crate) async fn primary<T, F>(&self, open: impl Fn(Target) -> F) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let mut primary = self.locate().await?;
        loop {
            let moved = async {
                loop {
                    sleep(LOOK_AGAIN).await;
                    if let Ok(now) = self.locate().await
                        && now.address != primary.address
                    {
                        return now;
                    }
                }
            };
            tokio::select! {
                opened = open(primary.clone()) => {
                    // Meanwhile it may have been replaced; and where most sentinels are silent, the
                    // others may name the one of before.
                    let opened = match self.have_left(&primary.address) {
                        true => Err(not_primary()),
                        false => opened,
                    };
                    return opened.map_err(|error| unusable(primary.address, error));
                }
                now = moved => primary = now,
            }
        }
    }

    /// Whether more than half of the sentinels named another server last.
    pub(crate) fn have_left(&self, address: &str) -> bool {
        self.last_primary()
            .as_ref()
            .is_some_and(|primary| primary != address)
    }

    fn last_primary(&self) -> MutexGuard<'_, Option<String>> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps asking for as long as anybody holds or waits, who must be listening already.
    pub(crate) fn look_out(self: &Arc<Self>) {
        if !self.looking.swap(true, Ordering::SeqCst) {
            let lookout = Lookout(Arc::clone(self));
            self.network.spawner.spawn(lookout.run());
        }
    }

    /// The address that more than half of the sentinels name, or else most of those that answer.
    async fn locate(&self) -> Result<Target, BackendError> {
        // For those that are silent. There has to be time left to connect without them.
        let network = &self.network;
        let patience = network.response_timeout.min(network.connect_timeout / 4);
        let mut deadline = Instant::now() + patience;
        let mut answers: FuturesUnordered<_> = self
            .sentinels
            .iter()
            .map(|sentinel| sentinel.ask(&self.service))
            .collect();
        let mut votes = Votes::of(self.sentinels.len());
        while votes.majority().is_none()
            && let Ok(Some(answer)) = timeout_at(deadline, answers.next()).await
        {
            votes.count(answer);
            if votes.are_most_in() {
                // They disagree, as in a failover: one that is silent must not keep us from asking
                // them again.
                deadline = deadline.min(Instant::now() + LOOK_AGAIN);
            }
        }
        if let Some((host, port)) = votes.majority() {
            let primary = self.login.at(host, port);
            self.note(&primary.address);
            return Ok(primary);
        }
        // Better than nothing for a new connection. But a few cannot talk us out of an old one.
        if let Some((host, port)) = votes.plurality() {
            return Ok(self.login.at(host, port));
        }
        Err(if votes.unknown {
            let trouble = Cause::UnknownService(self.service.clone());
            BackendError::refused(BackendErrorKind::Misconfigured, trouble)
        } else if let Some(error) = votes.failure {
            BackendError::refused(kind_of_connecting(&error), Cause::SentinelsFail(error))
        } else {
            let trouble = Cause::SentinelsSilent(patience);
            BackendError::refused(BackendErrorKind::Unavailable, trouble)
        })
    }

    fn note(&self, address: &str) {
        self.outage.end();
        let mut primary = self.last_primary();
        if primary.as_deref() == Some(address) {
            return;
        }
        let before = primary.replace(address.to_owned());
        drop(primary);
        if before.is_some() {
            #[cfg(feature = "tracing")]
            tracing::info!(address = self.address, primary = address, "primary changed");
            // Who holds must know whether the new one knows of it, who waits asks there, and the
            // subscription follows.
            self.network.recovery.report();
        }
    }
}

impl Sentinel {
    /// # Cancel safety
    ///
    /// An answer that comes too late is thrown away by its connection, which is kept.
    async fn ask(&self, service: &str) -> Result<Named, RedisError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        let kept = self.connection().clone();
        // A failure says no more than that this connection is of the past.
        if let Some(mut connection) = kept
            && let Ok(named) = question.query_async(&mut connection).await
        {
            return Ok(named);
        }
        let client = Client::open(self.target.info.clone())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let named = question.query_async(&mut connection).await?;
        *self.connection() = Some(connection);
        Ok(named)
    }

    fn connection(&self) -> MutexGuard<'_, Option<MultiplexedConnection>> {
        let connection = self.connection.lock();
        connection.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that keeps asking. On every exit, also with its runtime, the next who listens starts
/// another.
struct Lookout(Arc<Sentinels>);

impl Lookout {
    async fn run(self) {
        let sentinels = Arc::clone(&self.0);
        let recovery = &sentinels.network.recovery;
        loop {
            if let Err(error) = sentinels.locate().await {
                sentinels.outage.begin(&error);
            }
            sleep(jittered(LOOK_AGAIN)).await;
            if !recovery.is_awaited() {
                break;
            }
        }
        drop(self);
        // Who came between the look and the flag found the flag set.
        if recovery.is_awaited() {
            sentinels.look_out();
        }
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.0.looking.store(false, Ordering::SeqCst);
    }
}

fn address(sentinels: &[Target], service: &str) -> String {
    let sentinels: Vec<_> = sentinels.iter().map(|it| it.address.as_str()).collect();
    format!("{} (service {service:?})", sentinels.join(","))
}

/// Names the server: the log knows no more than the service. No error of opening a connection may
/// have taken effect.
fn unusable(address: String, source: BackendError) -> BackendError {
    BackendError::refused(source.kind(), Cause::Primary { address, source })
}

fn not_primary() -> BackendError {
    BackendError::refused(BackendErrorKind::Unavailable, Cause::NotPrimary)
}

/// A server that does not say that it is a primary is none: it was one a moment ago, or will be.
pub(crate) async fn require_primary(
    mut connection: MultiplexedConnection,
) -> Result<MultiplexedConnection, BackendError> {
    let hello = redis::cmd("HELLO");
    let answer = connection.send_packed_command(&hello).await;
    let answer =
        answer.map_err(|error| BackendError::refused(kind_of_connecting(&error), error))?;
    let role = match check(answer) {
        Ok(answer) => entry(&answer, "role"),
        Err(fault) => return Err(fault.into()),
    };
    if role.as_deref() == Some("master") {
        return Ok(connection);
    }
    Err(not_primary())
}
