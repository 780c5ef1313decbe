//! Rounds of questions to the sentinels.
//!
//! The sentinels are asked for every connection, because an address that led to the primary may lead to
//! a replica now.
//!
//! While there are holders or waiters, the sentinels are also asked at intervals. After a failover, the
//! old primary takes itself for the primary for ten seconds or more. All that it grants or renews in
//! this time is lost.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use redis::RedisConnectionInfo;
use tokio::time::{Instant, sleep, timeout_at};

use super::known::Known;
use super::question;
use super::votes::Votes;
use crate::backend::outage::Outage;
use crate::backend::redis::command::{Cause, unavailable};
use crate::backend::redis::connection::{
    ClientContext, Connection, Locate, OneTask, Running, Target,
};
use crate::backend::{BackendError, BackendErrorKind};
use crate::jitter::jittered;
use crate::mutex::Mutex;
use crate::observe::Part;
use crate::task::Background;

/// The interval of requests to the sentinels while there are holders or waiters, and while a connection
/// is being opened: a primary that hangs accepts connections and never replies.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

pub(crate) struct Sentinels {
    sentinels: Vec<Arc<Connection>>,
    service: String,
    /// The name of the service in errors and logs.
    address: String,
    /// The credentials for the primary, at any address.
    login: Target,
    context: Arc<ClientContext>,
    known: Mutex<Known>,
    looking: OneTask,
    outage: Outage,
}

impl Sentinels {
    /// `targets` are the sentinels with the credentials for the primary. `login` is for the sentinels.
    pub(crate) fn new(
        targets: Vec<Target>,
        service: String,
        login: RedisConnectionInfo,
        context: Arc<ClientContext>,
    ) -> Self {
        // RESP3 announces the end of a connection. A proxy may demand RESP2.
        let protocol = targets[0].info.redis_settings().protocol();
        let login = login.set_protocol(protocol);
        let sentinel = |target: &Target| {
            let target = target.with(login.clone());
            question::sentinel(target, Arc::clone(&context))
        };
        let address = address(&targets, &service);
        let outage = Outage::new(
            Part::Sentinel,
            "sentinels unavailable",
            "sentinels available again",
            &address,
        );
        Self {
            sentinels: targets.iter().map(sentinel).collect(),
            login: targets[0].clone(),
            service,
            address,
            context,
            known: Mutex::default(),
            looking: OneTask::default(),
            outage,
        }
    }

    /// Returns the server to connect to: see [the rule](super).
    ///
    /// # Cancel safety
    ///
    /// If dropped, tasks still wait for the replies of the sentinels, and discard them.
    async fn ask(&self) -> Result<Target, BackendError> {
        // Sentinels that do not reply must leave time to connect.
        let context = &self.context;
        let limit = context.response_timeout.min(context.connect_timeout / 4);
        let mut deadline = Instant::now() + limit;
        let mut replies: FuturesUnordered<_> = self
            .sentinels
            .iter()
            .map(|sentinel| question::ask(sentinel, &self.service))
            .collect();
        let mut votes = Votes::of(self.sentinels.len());
        while votes.majority().is_none()
            && let Ok(Some(reply)) = timeout_at(deadline, replies.next()).await
        {
            votes.count(reply);
            if votes.are_most_in() {
                // In a failover they disagree. A sentinel that hangs must not delay the next request.
                deadline = deadline.min(Instant::now() + LOOK_AGAIN);
            }
        }
        if let Some(primary) = self.decide(&votes) {
            return Ok(primary);
        }
        Err(if votes.unknown {
            let cause = Cause::UnknownService(self.service.clone());
            BackendError::refused(BackendErrorKind::Misconfigured, cause)
        } else if let Some(error) = votes.failure {
            BackendError::refused(error.kind(), Cause::SentinelsFail(error))
        } else {
            unavailable(Cause::SentinelsSilent(limit))
        })
    }

    fn decide(&self, votes: &Votes) -> Option<Target> {
        let mut known = self.known.lock();
        let (named, is_known) = known.decide(votes, Instant::now())?;
        let primary = self.login.at(&named.host, named.port);
        if !is_known {
            return Some(primary);
        }
        let before = known.address.replace(primary.address.clone());
        drop(known);
        self.outage.end();
        if before.is_some_and(|before| before != primary.address) {
            #[cfg(feature = "tracing")]
            tracing::info!(
                address = self.address,
                primary = primary.address,
                "primary changed"
            );
            // Holders ask the new primary whether it has their leases, waiters try there, and the
            // subscription follows.
            self.context.recovery.report();
        }
        Some(primary)
    }
}

impl Locate for Sentinels {
    fn address(&self) -> &str {
        &self.address
    }

    fn locate(&self) -> BoxFuture<'_, Result<Target, BackendError>> {
        self.ask().boxed()
    }

    fn moved<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Target> {
        let moved = async move {
            loop {
                sleep(LOOK_AGAIN).await;
                if let Ok(now) = self.ask().await
                    && now.address != address
                {
                    return now;
                }
            }
        };
        moved.boxed()
    }

    /// Returns `true` if another server is known to be the primary.
    fn has_left(&self, address: &str) -> bool {
        let known = self.known.lock();
        known.address.as_ref().is_some_and(|known| known != address)
    }

    fn can_move(&self) -> bool {
        true
    }

    fn look_out(self: Arc<Self>) {
        if let Some(running) = self.looking.start() {
            Background.spawn(look(Arc::downgrade(&self), running));
        }
    }
}

/// Asks the sentinels at intervals while recoveries have a subscriber. An outage without one would otherwise never end.
async fn look(sentinels: Weak<Sentinels>, running: Running) {
    let is_needed =
        |it: &Sentinels| it.context.recovery.is_awaited() || it.outage.ends_when_reached();
    while let Some(now) = sentinels.upgrade() {
        if let Err(error) = now.ask().await {
            now.outage.begin(&error);
        }
        drop(now);
        sleep(jittered(LOOK_AGAIN)).await;
        if !sentinels.upgrade().is_some_and(|it| is_needed(&it)) {
            break;
        }
    }
    drop(running);
    if let Some(sentinels) = sentinels.upgrade()
        && sentinels.context.recovery.is_awaited()
    {
        sentinels.look_out();
    }
}

fn address(sentinels: &[Target], service: &str) -> String {
    let sentinels: Vec<_> = sentinels.iter().map(|it| it.address.as_str()).collect();
    format!("{} (service {service:?})", sentinels.join(","))
}
