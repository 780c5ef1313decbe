//! The statements and their rows.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Row, SimpleQueryRow};
use uuid::Uuid;

use super::batch::{Batch, Command};
use super::error::{Cause, is_late, is_rejection};
use super::line::{Line, Session};
use super::single::{Single, literal};
use crate::LockKey;
use crate::backend::outage::Outage;
use crate::backend::{
    AcquireRequest, BackendError, Contended, Downgraded, Holder, KeepRequest, Mode, Release,
    Released, ReleasedOrKept, Renewal, Renewed,
};
use crate::observe;
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
// Attempts of which some wait, or are not exclusive.
const CONTEND: &str = "SELECT extract(epoch FROM pg_catalog.clock_timestamp())::float8, i.n, c.counter, c.ttl_ms, c.queued
    FROM unnest($1, $2, $3, $4, $5, $6, $7) WITH ORDINALITY i(key, lease, mode, most, ttl, waits, at, n),
    LATERAL tower_lock.contend(key, lease, mode, most, ttl, waits, at, $8, $9, false) c";
const CONTEND_ONE: Single = Single {
    columns: "(extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8, counter, ttl_ms, queued",
    function: "tower_lock.contend",
    types: &[
        "text", "text", "text", "int", "int8", "bool", "text", "float8", "bool", "bool",
    ],
};
const RELEASE: &str = "SELECT n, outcome FROM tower_lock.release_2($1, $2, $3)";
const RELEASE_ONE: Single = Single {
    columns: "release_one_2",
    function: "tower_lock.release_one_2",
    types: &["text", "text", "bool"],
};
const RENEW: &str = "SELECT n, wanted FROM tower_lock.renew_2($1, $2, $3, $4)";
const RELEASE_OR_KEEP: &str =
    "SELECT kept, others, outcome FROM tower_lock.release_or_keep_2($1, $2, $3, $4, $5, $6, $7)";
const DOWNGRADE: &str = "SELECT tower_lock.downgrade_2($1, $2, $3)";
const INSPECT: &str = "SELECT lease, (extract(epoch FROM until - clock_timestamp())::float8 * 1000::float8)::int8, mode,
    count(*) OVER (), (SELECT count(*) FROM tower_lock.waiter
        WHERE key = $1 AND lease <> '~' AND seen > clock_timestamp() - interval '3 s')
    FROM tower_lock.lease WHERE key = $1 AND until > clock_timestamp() ORDER BY until DESC LIMIT 1";
const REFRESH: &str = "UPDATE tower_lock.watcher SET seen = clock_timestamp() WHERE channel = $1";
const FORCE_RELEASE: &str = "SELECT tower_lock.release_one_2($1, $2, false)";

/// The interval of a waiter that no notification reaches, for each place in the queue up to its end, and at most.
const POLL_STEP: Duration = Duration::from_millis(10);
const POLL: Duration = Duration::from_millis(100);

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
        Mode::Shared => "s",
        Mode::Permit => "p",
    }
}

fn item<T>(items: &[T], ordinal: i64) -> Option<&T> {
    items.get(usize::try_from(ordinal - 1).ok()?)
}

/// Stores the outcome of the item with this ordinal.
fn store<T>(outcomes: &mut [Option<T>], ordinal: i64, outcome: Option<T>) {
    let index = usize::try_from(ordinal - 1).unwrap_or(usize::MAX);
    if let Some(known) = outcomes.get_mut(index) {
        *known = outcome;
    }
}

/// An attempt, and how it waits.
#[derive(Clone)]
pub(super) struct Attempt {
    pub(super) request: AcquireRequest,
    /// Whether it enters the queue.
    pub(super) waits: bool,
    /// The channel of this process, if notifications reach it.
    pub(super) channel: Option<String>,
}

impl Attempt {
    fn mode(&self) -> &'static str {
        mode_name(self.request.mode)
    }

    fn limit(&self) -> Option<i32> {
        self.request.limit.map(|it| i32::from(it.get()))
    }

    /// Returns `true` for a single attempt of an exclusive lease, which depends on no queue.
    fn is_plain(&self) -> bool {
        !self.waits && self.request.mode == Mode::Exclusive
    }

    /// Returns the outcome, or `None` if the mutex of the key was taken.
    fn outcome(
        &self,
        counter: Option<i64>,
        ttl: Option<i64>,
        queued: Option<i32>,
    ) -> Option<Contended> {
        if let Some(counter) = counter {
            return Some(Contended::granted(unsigned(counter)));
        }
        let ttl = Duration::from_millis(unsigned(ttl?));
        let Some(queued) = queued.filter(|_| self.waits) else {
            return Some(Contended::waiting(ttl, None));
        };
        let queued = u32::try_from(queued).unwrap_or(0).max(1);
        let poll = self.channel.is_none().then(|| POLL.min(POLL_STEP * queued));
        Some(Contended::polling(ttl, queued, poll))
    }
}

fn is_granted(outcome: &Option<Contended>) -> bool {
    matches!(outcome, Some(Contended::Granted { .. }))
}

/// Grants of one connection.
pub(super) struct Acquires {
    pub(super) line: Line,
    /// Whether a grant waits for the disk.
    pub(super) durable: bool,
    /// Only a grant shows its end: a server without space on its disk replies to other attempts.
    pub(super) outage: Outage,
    pub(super) releases: Arc<Batch<Releases>>,
}

impl Command for Acquires {
    type Item = Attempt;
    type Outcome = Contended;

    fn key(attempt: &Attempt) -> &LockKey {
        &attempt.request.key
    }

    async fn send(&self, attempts: &[&Attempt]) -> Result<Vec<Option<Contended>>, BackendError> {
        let attempt = async || {
            let session = self.line.session().await?;
            session.refresh_clock(self.line.response_timeout).await?;
            let deadline = Instant::now() + self.line.response_timeout;
            let outcomes = match attempts {
                [attempt] => self.send_one(&session, attempt, deadline).await,
                _ => self.send_all(&session, attempts, deadline).await,
            };
            drop(session);
            match &outcomes {
                Ok(outcomes) if outcomes.iter().any(is_granted) => self.outage.end_for_any(),
                Err(error) if is_rejection(error) => self.outage.begin_for_all(error),
                _ => {}
            }
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

    fn undo(&self, attempt: Attempt, outcome: Result<Contended, BackendError>) {
        let may_hold = match outcome {
            // A place of a waiter that left delays others.
            Ok(contended) => attempt.waits || matches!(contended, Contended::Granted { .. }),
            Err(error) => error.may_have_taken_effect(),
        };
        if may_hold {
            let AcquireRequest { key, lease, .. } = attempt.request;
            // If it fails, the lease expires.
            let release = self.releases.call(Leaver {
                lease: Release::new(key, lease),
                leaves: attempt.waits,
            });
            Background.spawn(async move { drop(release.await) });
        }
    }
}

impl Acquires {
    async fn send_one(
        &self,
        session: &Session,
        attempt: &Attempt,
        deadline: Instant,
    ) -> Result<Vec<Option<Contended>>, BackendError> {
        let request = &attempt.request;
        let (key, lease, mode) = (literal(&request.key), request.lease, attempt.mode());
        let (ttl, not_after) = (millis(request.ttl), session.clock_at(deadline));
        let rest = format!("{not_after}, {}, true", self.durable);
        let (single, arguments) = if attempt.is_plain() {
            let arguments = format!("{key}, '{lease}', '{mode}', {ttl}, {rest}");
            (ACQUIRE_ONE, arguments)
        } else {
            let most = (attempt.limit()).map_or("NULL".to_owned(), |it| it.to_string());
            let at = (attempt.channel.as_ref()).map_or("NULL".to_owned(), |it| format!("'{it}'"));
            let waits = attempt.waits;
            let arguments =
                format!("{key}, '{lease}', '{mode}', {most}, {ttl}, {waits}, {at}, {rest}");
            (CONTEND_ONE, arguments)
        };
        let row = session.query_one(single, &arguments, deadline).await?;
        session.set_clock(parsed(&row, 0).map(|micros: f64| micros / 1e6))?;
        let queued = attempt.waits.then(|| parsed(&row, 3)).flatten();
        Ok(vec![attempt.outcome(
            parsed(&row, 1),
            parsed(&row, 2),
            queued,
        )])
    }

    async fn send_all(
        &self,
        session: &Session,
        attempts: &[&Attempt],
        deadline: Instant,
    ) -> Result<Vec<Option<Contended>>, BackendError> {
        let requests = || attempts.iter().map(|it| &it.request);
        let keys: Vec<_> = requests().map(|it| it.key.as_str()).collect();
        let leases: Vec<_> = requests().map(|it| it.lease.to_string()).collect();
        let modes: Vec<_> = attempts.iter().map(|it| it.mode()).collect();
        let limits: Vec<_> = attempts.iter().map(|it| it.limit()).collect();
        let ttls: Vec<_> = requests().map(|it| millis(it.ttl)).collect();
        let waits: Vec<_> = attempts.iter().map(|it| it.waits).collect();
        let channels: Vec<_> = attempts.iter().map(|it| it.channel.as_deref()).collect();
        // The server refuses the attempt after this time.
        let not_after = session.clock_at(deadline);
        let is_plain = attempts.iter().all(|it| it.is_plain());
        let keys: (&(dyn ToSql + Sync), Type) = (&keys, Type::TEXT_ARRAY);
        let rest: [(&(dyn ToSql + Sync), Type); 2] =
            [(&not_after, Type::FLOAT8), (&self.durable, Type::BOOL)];
        let mut parameters = vec![
            keys,
            (&leases, Type::TEXT_ARRAY),
            (&modes, Type::TEXT_ARRAY),
        ];
        if !is_plain {
            parameters.push((&limits, Type::INT4_ARRAY));
        }
        parameters.push((&ttls, Type::INT8_ARRAY));
        if !is_plain {
            parameters.push((&waits, Type::BOOL_ARRAY));
            parameters.push((&channels, Type::TEXT_ARRAY));
        }
        parameters.extend(rest);
        let statement = if is_plain { ACQUIRE } else { CONTEND };
        let rows = session.query(statement, &parameters, deadline).await?;
        session.set_clock(rows.first().and_then(|row| row.try_get(0).ok()))?;
        let mut outcomes = vec![None; attempts.len()];
        for row in &rows {
            let ordinal = column(row, 1)?;
            let queued = if is_plain { None } else { column(row, 4)? };
            if let Some(attempt) = item(attempts, ordinal) {
                let outcome = attempt.outcome(column(row, 2)?, column(row, 3)?, queued);
                store(&mut outcomes, ordinal, outcome);
            }
        }
        Ok(outcomes)
    }
}

/// A lease that ends.
#[derive(Clone)]
pub(super) struct Leaver {
    pub(super) lease: Release,
    /// Whether it also leaves the queue.
    pub(super) leaves: bool,
}

/// Releases, on the connection of all commands but grants.
pub(super) struct Releases {
    pub(super) line: Arc<Line>,
    pub(super) outage: Outage,
}

impl Command for Releases {
    type Item = Leaver;
    type Outcome = Released;

    fn key(leaver: &Leaver) -> &LockKey {
        &leaver.lease.key
    }

    async fn send(&self, leavers: &[&Leaver]) -> Result<Vec<Option<Released>>, BackendError> {
        let outcomes = match leavers {
            [leaver] => self.release_one(leaver).await,
            _ => self.release_all(leavers).await,
        };
        match &outcomes {
            Ok(_) => self.outage.end_for_any(),
            Err(error) if is_rejection(error) => self.outage.begin_for_all(error),
            Err(_) => {}
        }
        outcomes
    }

    fn undo(&self, _: Leaver, _: Result<Released, BackendError>) {}
}

impl Releases {
    async fn release_all(
        &self,
        leavers: &[&Leaver],
    ) -> Result<Vec<Option<Released>>, BackendError> {
        let keys: Vec<_> = leavers.iter().map(|it| it.lease.key.as_str()).collect();
        let leases: Vec<_> = leavers
            .iter()
            .map(|it| it.lease.lease.to_string())
            .collect();
        let leaves: Vec<_> = leavers.iter().map(|it| it.leaves).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
            (&keys, Type::TEXT_ARRAY),
            (&leases, Type::TEXT_ARRAY),
            (&leaves, Type::BOOL_ARRAY),
        ];
        let mut outcomes = vec![None; leavers.len()];
        for row in &self.line.query(RELEASE, &parameters).await? {
            let outcome: Option<&str> = column(row, 1)?;
            store(&mut outcomes, column(row, 0)?, outcome.map(released));
        }
        Ok(outcomes)
    }

    async fn release_one(&self, leaver: &Leaver) -> Result<Vec<Option<Released>>, BackendError> {
        let session = self.line.session().await?;
        let deadline = Instant::now() + self.line.response_timeout;
        let Leaver { lease, leaves } = leaver;
        let arguments = format!("{}, '{}', {leaves}", literal(&lease.key), lease.lease);
        let row = session.query_one(RELEASE_ONE, &arguments, deadline).await?;
        let unexpected = |_| BackendError::unknown(Cause::Unexpected);
        let outcome = row.try_get(0).map_err(unexpected)?;
        Ok(vec![outcome.map(released)])
    }
}

fn released(outcome: &str) -> Released {
    match outcome {
        "r" => Released::Released,
        "t" => {
            observe::transferred();
            Released::Transferred
        }
        "o" => Released::LeftToOthers,
        _ => Released::NotHeld,
    }
}

/// The commands that are no part of a batch.
impl Line {
    pub(super) async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError> {
        let keys: Vec<_> = renewals.iter().map(|it| it.key.as_str()).collect();
        // The name of a permit, whose mode is that of an exclusive lease.
        let leases = renewals.iter().map(|it| match it.mode {
            Mode::Permit => format!("p{}", it.lease),
            _ => it.lease.to_string(),
        });
        let leases: Vec<_> = leases.collect();
        let modes = renewals.iter().map(|it| match it.mode {
            Mode::Permit => mode_name(Mode::Exclusive),
            mode => mode_name(mode),
        });
        let modes: Vec<_> = modes.collect();
        let ttls: Vec<_> = renewals.iter().map(|it| millis(it.ttl)).collect();
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&keys, Type::TEXT_ARRAY),
            (&leases, Type::TEXT_ARRAY),
            (&modes, Type::TEXT_ARRAY),
            (&ttls, Type::INT8_ARRAY),
        ];
        let mut outcomes = vec![None; renewals.len()];
        for row in &self.query(RENEW, &parameters).await? {
            let renewed = match column(row, 1)? {
                true => Renewed::Wanted,
                false => Renewed::Renewed,
            };
            store(&mut outcomes, column(row, 0)?, Some(renewed));
        }
        let outcomes = outcomes.into_iter();
        Ok(outcomes.map(|it| it.unwrap_or(Renewed::NotHeld)).collect())
    }

    /// `channel`: that of this process, if the next lease listens.
    pub(super) async fn release_or_keep(
        &self,
        request: &KeepRequest,
        channel: Option<String>,
    ) -> Result<ReleasedOrKept, BackendError> {
        let (lease, manager) = (
            request.lease.to_string(),
            request.lease.manager().to_string(),
        );
        let next = request.next.map(|it| it.to_string());
        let counters = i32::try_from(request.counters).unwrap_or(1);
        let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
            (&request.key.as_str(), Type::TEXT),
            (&lease, Type::TEXT),
            (&manager, Type::TEXT),
            (&millis(request.ttl), Type::INT8),
            (&counters, Type::INT4),
            (&next, Type::TEXT),
            (&channel, Type::TEXT),
        ];
        let rows = self.query(RELEASE_OR_KEEP, &parameters).await?;
        let row = only(&rows)?;
        if let Some(last) = column::<Option<i64>>(row, 0)? {
            let first = unsigned(last - i64::from(counters) + 1);
            return Ok(ReleasedOrKept::kept(first));
        }
        let Some(outcome) = column::<Option<&str>>(row, 2)? else {
            return Ok(ReleasedOrKept::NotHeld);
        };
        let others = u32::try_from(column::<i32>(row, 1)?).unwrap_or(u32::MAX);
        let passed = ReleasedOrKept::passed(released(outcome), others, next.is_some());
        Ok(passed.with_listening(next.is_some() && channel.is_some()))
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
        let count = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
        let (leases, queued) = (count(column(row, 3)?), count(column(row, 4)?));
        let name: &str = column(row, 0)?;
        let permit = name.strip_prefix('p');
        let holder = Holder::new(permit.unwrap_or(name).to_owned(), ttl, 1).with_queued(queued);
        Ok(Some(match column::<&str>(row, 2)? {
            _ if permit.is_some() => holder.with_permits(leases),
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
        Ok(column::<&str>(only(&rows)?, 0)? != "n")
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
