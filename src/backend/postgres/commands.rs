//! The statements and their rows.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Row, SimpleQueryRow};
use uuid::Uuid;

use super::batch::{Batch, Command};
use super::error::{Cause, is_late};
use super::line::{Line, Session};
use super::single::{Single, literal};
use crate::LockKey;
use crate::backend::{
    AcquireRequest, Acquired, BackendError, Downgraded, Holder, KeepRequest, Mode, Release,
    Released, ReleasedOrKept, Renewal, Renewed,
};
use crate::task::Background;

const ACQUIRE: &str =
    "SELECT extract(epoch FROM pg_catalog.clock_timestamp())::float8, n, counter, ttl_ms
    FROM tower_lock.acquire($1, $2, $3, $4, $5, $6)";
// One item, which may wait for the mutex of its key.
const ACQUIRE_ONE: Single = Single {
    columns: "(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8, counter, ttl_ms",
    function: "tower_lock.acquire_one",
    types: &["text", "text", "text", "int8", "float8", "bool", "bool"],
};
const RELEASE: &str = "SELECT n, was_held FROM tower_lock.release($1, $2)";
const RELEASE_ONE: Single = Single {
    columns: "release_one",
    function: "tower_lock.release_one",
    types: &["text", "text"],
};
const RENEW: &str = "SELECT tower_lock.renew($1, $2, $3, $4)";
const RELEASE_OR_KEEP: &str =
    "SELECT kept, watchers FROM tower_lock.release_or_keep($1, $2, $3, $4, $5)";
const DOWNGRADE: &str = "SELECT tower_lock.downgrade($1, $2, $3)";
const INSPECT: &str = "SELECT lease, (extract(epoch FROM until - clock_timestamp())::float8 * 1000::float8)::int8, mode,
    count(*) OVER () FROM tower_lock.lease WHERE key = $1 AND until > clock_timestamp() ORDER BY until DESC LIMIT 1";
const REFRESH: &str = "UPDATE tower_lock.watcher SET seen = clock_timestamp() WHERE channel = $1";
const FORCE_RELEASE: &str = "SELECT tower_lock.release_one($1, $2)";

fn column<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T, BackendError> {
    let unexpected = |_| BackendError::unknown(Cause::Unexpected);
    row.try_get(index).map_err(unexpected)
}

/// Returns a number from a row of text, or `None` for NULL.
fn parsed<T: FromStr>(row: &SimpleQueryRow, index: usize) -> Option<T> {
    row.try_get(index).ok()??.parse().ok()
}

fn only(rows: &[Row]) -> Result<&Row, BackendError> {
    rows.first()
        .ok_or_else(|| BackendError::unknown(Cause::Unexpected))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 1_000_000)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "x",
        _ => "s",
    }
}

/// Stores the outcome of the item with this ordinal.
fn store<T>(outcomes: &mut [Option<T>], ordinal: i64, outcome: Option<T>) {
    let index = usize::try_from(ordinal - 1).unwrap_or(usize::MAX);
    if let Some(known) = outcomes.get_mut(index) {
        *known = outcome;
    }
}

/// Grants of one connection.
pub(super) struct Acquires {
    pub(super) line: Line,
    /// Whether a grant waits for the disk.
    pub(super) durable: bool,
    pub(super) releases: Arc<Batch<Releases>>,
}

impl Command for Acquires {
    type Item = AcquireRequest;
    type Outcome = Acquired;

    fn key(request: &AcquireRequest) -> &LockKey {
        &request.key
    }

    async fn send(
        &self,
        requests: &[&AcquireRequest],
    ) -> Result<Vec<Option<Acquired>>, BackendError> {
        let attempt = async || {
            let session = self.line.session().await?;
            session.refresh_clock(self.line.response_timeout).await?;
            let deadline = Instant::now() + self.line.response_timeout;
            let outcomes = match requests {
                [request] => self.acquire_one(&session, request, deadline).await,
                _ => self.acquire(&session, requests, deadline).await,
            };
            if let Err(error) = &outcomes
                && error.may_have_taken_effect()
            {
                // The release of these leases must not overtake the command, which may still be in flight.
                sleep_until(deadline).await;
            }
            outcomes
        };
        match attempt().await {
            // The clock of the server has stepped, or this machine was suspended. Another connection reads it again.
            Err(error) if is_late(&error) => attempt().await,
            outcomes => outcomes,
        }
    }

    fn undo(&self, request: AcquireRequest, outcome: Result<Acquired, BackendError>) {
        let may_hold = match outcome {
            Ok(acquired) => matches!(acquired, Acquired::Granted { .. }),
            Err(error) => error.may_have_taken_effect(),
        };
        if may_hold {
            // If it fails, the lease expires.
            let release = self.releases.call(Release::new(request.key, request.lease));
            Background.spawn(async move { drop(release.await) });
        }
    }
}

impl Acquires {
    async fn acquire_one(
        &self,
        session: &Session,
        request: &AcquireRequest,
        deadline: Instant,
    ) -> Result<Vec<Option<Acquired>>, BackendError> {
        let arguments = format!(
            "{}, '{}', '{}', {}, {}, {}, true",
            literal(&request.key),
            request.lease,
            mode_name(request.mode),
            millis(request.ttl),
            session.clock_at(deadline),
            self.durable
        );
        let row = session.query_one(ACQUIRE_ONE, &arguments, deadline).await?;
        session.set_clock(parsed(&row, 0).map(|micros: f64| micros / 1e6))?;
        Ok(vec![outcome(parsed(&row, 1), parsed(&row, 2))])
    }

    async fn acquire(
        &self,
        session: &Session,
        requests: &[&AcquireRequest],
        deadline: Instant,
    ) -> Result<Vec<Option<Acquired>>, BackendError> {
        let keys: Vec<_> = requests.iter().map(|it| it.key.as_str()).collect();
        let leases: Vec<_> = requests.iter().map(|it| it.lease.to_string()).collect();
        let modes: Vec<_> = requests.iter().map(|it| mode_name(it.mode)).collect();
        let ttls: Vec<_> = requests.iter().map(|it| millis(it.ttl)).collect();
        // The server refuses the attempt after this time.
        let not_after = session.clock_at(deadline);
        let parameters: [(&(dyn ToSql + Sync), Type); 6] = [
            (&keys, Type::TEXT_ARRAY),
            (&leases, Type::TEXT_ARRAY),
            (&modes, Type::TEXT_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&not_after, Type::FLOAT8),
            (&self.durable, Type::BOOL),
        ];
        let rows = session.query(ACQUIRE, &parameters, deadline).await?;
        session.set_clock(rows.first().and_then(|row| row.try_get(0).ok()))?;
        let mut outcomes = vec![None; requests.len()];
        for row in &rows {
            let outcome = outcome(column(row, 2)?, column(row, 3)?);
            store(&mut outcomes, column(row, 1)?, outcome);
        }
        Ok(outcomes)
    }
}

/// Returns the outcome of an attempt, or `None` if the mutex of its key was taken.
fn outcome(counter: Option<i64>, ttl: Option<i64>) -> Option<Acquired> {
    match (counter, ttl) {
        (Some(counter), _) => Some(Acquired::granted(unsigned(counter))),
        (None, Some(ttl)) => Some(Acquired::busy(Duration::from_millis(unsigned(ttl)))),
        (None, None) => None,
    }
}

/// Releases, on the connection of all commands but grants.
pub(super) struct Releases {
    pub(super) line: Arc<Line>,
}

impl Command for Releases {
    type Item = Release;
    type Outcome = Released;

    fn key(release: &Release) -> &LockKey {
        &release.key
    }

    async fn send(&self, releases: &[&Release]) -> Result<Vec<Option<Released>>, BackendError> {
        if let [release] = releases {
            return self.release_one(release).await;
        }
        let keys: Vec<_> = releases.iter().map(|it| it.key.as_str()).collect();
        let leases: Vec<_> = releases.iter().map(|it| it.lease.to_string()).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&keys, Type::TEXT_ARRAY), (&leases, Type::TEXT_ARRAY)];
        let mut outcomes = vec![None; releases.len()];
        for row in &self.line.query(RELEASE, &parameters).await? {
            let was_held: Option<bool> = column(row, 1)?;
            store(&mut outcomes, column(row, 0)?, was_held.map(released));
        }
        Ok(outcomes)
    }

    fn undo(&self, _: Release, _: Result<Released, BackendError>) {}
}

impl Releases {
    async fn release_one(&self, release: &Release) -> Result<Vec<Option<Released>>, BackendError> {
        let session = self.line.session().await?;
        let deadline = Instant::now() + self.line.response_timeout;
        let arguments = format!("{}, '{}'", literal(&release.key), release.lease);
        let row = session.query_one(RELEASE_ONE, &arguments, deadline).await?;
        let unexpected = |_| BackendError::unknown(Cause::Unexpected);
        let was_held = row.try_get(0).map_err(unexpected)?.map(|it| it == "t");
        Ok(vec![was_held.map(released)])
    }
}

fn released(was_held: bool) -> Released {
    match was_held {
        true => Released::Released,
        false => Released::NotHeld,
    }
}

/// The commands that are no part of a batch.
impl Line {
    pub(super) async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError> {
        let keys: Vec<_> = renewals.iter().map(|it| it.key.as_str()).collect();
        let leases: Vec<_> = renewals.iter().map(|it| it.lease.to_string()).collect();
        let modes: Vec<_> = renewals.iter().map(|it| mode_name(it.mode)).collect();
        let ttls: Vec<_> = renewals.iter().map(|it| millis(it.ttl)).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&keys, Type::TEXT_ARRAY),
            (&leases, Type::TEXT_ARRAY),
            (&modes, Type::TEXT_ARRAY),
            (&ttls, Type::INT8_ARRAY),
        ];
        let mut outcomes = vec![None; renewals.len()];
        for row in &self.query(RENEW, &parameters).await? {
            store(&mut outcomes, column(row, 0)?, Some(Renewed::Renewed));
        }
        let outcomes = outcomes.into_iter();
        Ok(outcomes.map(|it| it.unwrap_or(Renewed::NotHeld)).collect())
    }

    pub(super) async fn release_or_keep(
        &self,
        request: &KeepRequest,
    ) -> Result<ReleasedOrKept, BackendError> {
        let (lease, manager) = (
            request.lease.to_string(),
            request.lease.manager().to_string(),
        );
        let counters = i32::try_from(request.counters).unwrap_or(1);
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&request.key.as_str(), Type::TEXT),
            (&lease, Type::TEXT),
            (&manager, Type::TEXT),
            (&millis(request.ttl), Type::INT8),
            (&counters, Type::INT4),
        ];
        let rows = self.query(RELEASE_OR_KEEP, &parameters).await?;
        let row = only(&rows)?;
        Ok(
            match (
                column::<Option<i64>>(row, 0)?,
                column::<Option<i32>>(row, 1)?,
            ) {
                (Some(last), _) => ReleasedOrKept::kept(unsigned(last - i64::from(counters) + 1)),
                (None, Some(watchers)) => {
                    ReleasedOrKept::released(u32::try_from(watchers).unwrap_or(u32::MAX))
                }
                (None, None) => ReleasedOrKept::NotHeld,
            },
        )
    }

    pub(super) async fn downgrade(&self, lease: &Renewal) -> Result<Downgraded, BackendError> {
        let id = lease.lease.to_string();
        let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
            (&lease.key.as_str(), Type::TEXT),
            (&id, Type::TEXT),
            (&millis(lease.ttl), Type::INT8),
        ];
        let rows = self.query(DOWNGRADE, &parameters).await?;
        let counter: Option<i64> = column(only(&rows)?, 0)?;
        Ok(counter.map_or(Downgraded::NotHeld, |it| Downgraded::shared(unsigned(it))))
    }

    pub(super) async fn inspect(&self, key: &LockKey) -> Result<Option<Holder>, BackendError> {
        let rows = self.query(INSPECT, &[(&key.as_str(), Type::TEXT)]).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let ttl = Duration::from_millis(unsigned(column(row, 1)?));
        let holder = Holder::new(column(row, 0)?, ttl, 1);
        let leases = u32::try_from(column::<i64>(row, 3)?).unwrap_or(u32::MAX);
        Ok(Some(match column::<&str>(row, 2)? {
            "s" => holder.with_shared(leases),
            _ => holder,
        }))
    }

    /// Releases a lease, or all leases of the key. Returns whether one held it.
    pub(super) async fn force_release(
        &self,
        key: &LockKey,
        holder: Option<&str>,
    ) -> Result<bool, BackendError> {
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&key.as_str(), Type::TEXT), (&holder, Type::TEXT)];
        let rows = self.query(FORCE_RELEASE, &parameters).await?;
        column(only(&rows)?, 0)
    }

    /// Registers or removes a manager that waits for a key.
    pub(super) async fn set_watch(
        &self,
        watches: bool,
        key: &str,
        manager: Uuid,
        channel: &str,
    ) -> Result<(), BackendError> {
        let statement = match watches {
            true => "SELECT tower_lock.watch($1, $2, $3)",
            false => "SELECT tower_lock.unwatch($1, $2, $3)",
        };
        let manager = manager.to_string();
        let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
            (&key, Type::TEXT),
            (&manager, Type::TEXT),
            (&channel, Type::TEXT),
        ];
        self.query(statement, &parameters).await.map(drop)
    }

    /// Refreshes the rows of the managers of a channel.
    pub(super) async fn refresh_watches(&self, channel: &str) -> Result<(), BackendError> {
        self.query(REFRESH, &[(&channel, Type::TEXT)])
            .await
            .map(drop)
    }

    pub(super) async fn notify(&self, channel: &str, text: &str) -> Result<(), BackendError> {
        let parameters: [(&(dyn ToSql + Sync), Type); 2] =
            [(&channel, Type::TEXT), (&text, Type::TEXT)];
        self.query("SELECT pg_notify($1, $2)", &parameters)
            .await
            .map(drop)
    }
}
