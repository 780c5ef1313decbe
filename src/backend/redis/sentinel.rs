//! Which server is the primary of a service, as the sentinels know it.
//!
//! Asked anew for every connection: the address of yesterday may be a replica today. A sentinel that
//! was cut off names the primary of before, so what most of them say counts, and the server itself
//! has to say that it is one.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Client, RedisConnectionInfo, RedisError};
use tokio::time::{Instant, sleep, timeout_at};

use super::fault::{Trouble, check, kind_of_connecting};
use super::self_test::entry;
use super::target::Target;
use crate::backend::{BackendError, BackendErrorKind};

/// How often the sentinels are asked again while a connection does not come about: a primary that
/// stands still accepts connections and says nothing.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

pub(super) struct Sentinels {
    sentinels: Vec<Target>,
    service: String,
    /// The same with the login of the primary, wherever that is.
    login: Vec<Target>,
    /// How long to wait for those that do not agree, or do not answer.
    patience: Duration,
}

impl Sentinels {
    /// `targets` name the sentinels and hold the login of the primary, which is none of theirs:
    /// they have their own, or none.
    pub(super) fn new(
        targets: Vec<Target>,
        service: String,
        login: RedisConnectionInfo,
        patience: Duration,
    ) -> Self {
        let sentinel = |target: &Target| Target {
            info: target.info.clone().set_redis_settings(login.clone()),
            address: target.address.clone(),
        };
        Self {
            sentinels: targets.iter().map(sentinel).collect(),
            login: targets,
            service,
            patience,
        }
    }

    /// What to call the service in errors and logs.
    pub(super) fn address(&self) -> String {
        let sentinels: Vec<_> = self
            .sentinels
            .iter()
            .map(|it| it.address.as_str())
            .collect();
        format!("{} (service {:?})", sentinels.join(","), self.service)
    }

    /// Opens a connection to the primary, and to the next one if the primary moves meanwhile.
    /// Bounded by the caller.
    ///
    /// # Cancel safety
    ///
    /// A connection that was about to open is closed.
    pub(super) async fn primary<T, F>(&self, open: impl Fn(Target) -> F) -> Result<T, BackendError>
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
                opened = open(primary.clone()) => return opened,
                now = moved => primary = now,
            }
        }
    }

    /// The address that more than half of the sentinels name, or else most of those that answer.
    async fn locate(&self) -> Result<Target, BackendError> {
        let deadline = Instant::now() + self.patience;
        let mut answers: FuturesUnordered<_> = self
            .sentinels
            .iter()
            .map(|sentinel| self.ask(sentinel))
            .collect();
        let mut named: Vec<(String, u16, usize)> = Vec::new();
        let mut unknown = 0;
        let mut failure = None;
        while let Ok(Some(answer)) = timeout_at(deadline, answers.next()).await {
            match answer {
                Ok(Some((host, port))) => {
                    let known = named.iter_mut().find(|it| it.0 == host && it.1 == port);
                    match known {
                        Some(known) => known.2 += 1,
                        None => named.push((host, port, 1)),
                    }
                }
                Ok(None) => unknown += 1,
                Err(error) => failure = Some(error),
            }
            if named.iter().any(|it| 2 * it.2 > self.sentinels.len()) {
                break;
            }
        }
        if let Some((host, port, _)) = named.iter().max_by_key(|it| it.2) {
            return Ok(self.login[0].at(host, *port));
        }
        Err(if unknown > 0 {
            let service = self.service.clone();
            BackendError::refused(
                BackendErrorKind::Misconfigured,
                Trouble::UnknownService(service),
            )
        } else if let Some(error) = failure {
            BackendError::refused(kind_of_connecting(&error), error)
        } else {
            BackendError::refused(
                BackendErrorKind::Unavailable,
                Trouble::NoConnection(self.patience),
            )
        })
    }

    async fn ask(&self, sentinel: &Target) -> Result<Option<(String, u16)>, RedisError> {
        let client = Client::open(sentinel.info.clone())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        question.query_async(&mut connection).await
    }
}

/// A server that does not say that it is a primary is none: it was one a moment ago, or will be.
pub(super) async fn require_primary(
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
    Err(BackendError::refused(
        BackendErrorKind::Unavailable,
        Trouble::NotPrimary,
    ))
}
