//! Commands of many keys, as processes of both versions may send them: repeated keys and leases, held keys, waiters, and
//! mutexes of others.

use std::collections::HashMap;

use futures_util::future::join_all;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::backend;
use super::support::postgres_server::PostgresServer;

const TTL: i64 = 60_000;
const LATE: f64 = 1e12;
const LIMIT: i32 = 3;
const MODES: [&str; 3] = ["x", "s", "p"];

const OLD_ACQUIRE: &str =
    "SELECT n, counter, ttl_ms FROM tower_lock.acquire($1, $2, $3, $4, $5, false)";
const OLD_RELEASE: &str = "SELECT n, was_held FROM tower_lock.release($1, $2)";
const CONTEND: &str = "SELECT i.n, c.counter, c.ttl_ms
    FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY i(key, lease, mode, n),
    LATERAL tower_lock.contend(key, lease, mode, $4, $5, $6, 'channel', $7, false, $8) c";
const RELEASE: &str = "SELECT n, outcome <> 'n' FROM tower_lock.release_2($1, $2, $3)";
const RELEASE_ONE: &str = "SELECT 1::bigint, tower_lock.release_one_2($1, $2, $3) <> 'n'";
const KEEP: &str =
    "SELECT kept, outcome FROM tower_lock.release_or_keep_2($1, $2, $3, $4, 2, $5, 'channel')";
const DOWNGRADE: &str = "SELECT tower_lock.downgrade_2($1, $2, $3)";

/// A process with a session, a manager and leases of its own.
struct Process {
    client: Client,
    number: usize,
    is_old: bool,
    random: fastrand::Rng,
    /// The counters and leases of grants by key and mode, in the order of the commands.
    granted: HashMap<(String, &'static str), Vec<(i64, String)>>,
}

impl Process {
    async fn query(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<Row> {
        self.client.query(statement, parameters).await.unwrap()
    }

    async fn is_held(&self, key: &str, lease: &str) -> bool {
        let held = "SELECT EXISTS (SELECT FROM tower_lock.lease
            WHERE key = $1 AND lease IN ($2, 'p' || $2) AND until > clock_timestamp())";
        self.query(held, &[&key, &lease]).await[0].get(0)
    }

    fn key(&mut self) -> String {
        format!("k{}", self.random.usize(0..4))
    }

    /// A lease always has the same mode.
    fn lease(&mut self) -> (String, &'static str) {
        let (modes, lease) = (if self.is_old { 2 } else { 3 }, self.random.usize(0..6));
        (format!("{}:{lease}", self.number), MODES[lease % modes])
    }

    async fn acquire(&mut self) {
        let most = if self.random.bool() { 1 } else { 8 };
        let (mut keys, mut leases, mut modes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.random.usize(1..=most) {
            let (lease, mode) = self.lease();
            keys.push(self.key());
            leases.push(lease);
            modes.push(mode);
        }
        let ttls = vec![TTL; keys.len()];
        let (waits, is_alone) = (self.random.bool(), keys.len() == 1);
        let rows = match self.is_old {
            true => {
                self.query(OLD_ACQUIRE, &[&keys, &leases, &modes, &ttls, &LATE])
                    .await
            }
            false => {
                self.query(
                    CONTEND,
                    &[
                        &keys, &leases, &modes, &LIMIT, &TTL, &waits, &LATE, &is_alone,
                    ],
                )
                .await
            }
        };
        assert_eq!(rows.len(), keys.len(), "one row for each");
        for row in rows {
            let at = usize::try_from(row.get::<_, i64>(0)).unwrap() - 1;
            let (counter, ttl): (Option<i64>, Option<i64>) = (row.get(1), row.get(2));
            assert!(counter.is_none() || ttl.is_none());
            let Some(counter) = counter else {
                assert!(ttl.is_some() || !is_alone || self.is_old);
                continue;
            };
            let of_key = (keys[at].clone(), modes[at]);
            let grant = (counter, leases[at].clone());
            self.granted.entry(of_key).or_default().push(grant);
            assert!(self.is_held(&keys[at], &leases[at]).await);
        }
    }

    async fn release(&mut self) {
        let (mut keys, mut leases) = (Vec::new(), Vec::new());
        for _ in 0..self.random.usize(1..60) {
            keys.push(self.key());
            leases.push(self.lease().0);
        }
        let leaves: Vec<_> = keys.iter().map(|_| self.random.bool()).collect();
        let rows = match self.is_old {
            true => self.query(OLD_RELEASE, &[&keys, &leases]).await,
            false if keys.len() == 1 => {
                self.query(RELEASE_ONE, &[&keys[0], &leases[0], &leaves[0]])
                    .await
            }
            false => self.query(RELEASE, &[&keys, &leases, &leaves]).await,
        };
        assert_eq!(rows.len(), keys.len(), "one row for each");
        for row in rows {
            let at = usize::try_from(row.get::<_, i64>(0)).unwrap() - 1;
            let was_held: Option<bool> = row.get(1);
            let is_held = self.is_held(&keys[at], &leases[at]).await;
            // Another session transfers keys to places of the queue.
            assert!(was_held.is_none() || !is_held || !self.is_old);
        }
    }

    /// Keeps or downgrades an exclusive lease.
    async fn change(&mut self) {
        let (key, (lease, mode)) = (self.key(), self.lease());
        if self.is_old || mode != "x" {
            return;
        }
        if self.random.bool() {
            let next = format!("{}:0", self.number);
            let (lease, own) = (format!("{}:3", self.number), self.number.to_string());
            self.query(KEEP, &[&key, &lease, &own, &TTL, &next]).await;
        } else {
            self.query(DOWNGRADE, &[&key, &lease, &TTL]).await;
            self.query(RELEASE_ONE, &[&key, &lease, &true]).await;
        }
    }

    async fn steps(mut self) -> HashMap<(String, &'static str), Vec<(i64, String)>> {
        // It listens.
        let proof = "SELECT pg_advisory_lock_shared(1953459814, hashtext('channel'))";
        self.query(proof, &[]).await;
        for _ in 0..150 {
            self.acquire().await;
            self.change().await;
            self.release().await;
        }
        self.granted
    }
}

async fn granted(old: impl Fn(usize) -> bool) {
    let server = PostgresServer::start(&[]).await;
    let _backend = backend(&server).await;
    // A grant beside one that excludes it fails in each session.
    server
        .run(&format!(
            "CREATE FUNCTION excludes() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
               IF EXISTS (SELECT FROM tower_lock.lease WHERE key = NEW.key AND lease <> NEW.lease
                 AND (mode = 'x' OR NEW.mode = 'x') AND NOT (lease LIKE 'p%' AND NEW.lease LIKE 'p%'))
                 THEN RAISE EXCEPTION 'two owners'; END IF;
               IF (SELECT count(*) FROM tower_lock.lease WHERE key = NEW.key AND lease LIKE 'p%') > {LIMIT}
                 THEN RAISE EXCEPTION 'too many permits'; END IF;
               RETURN NULL;
             END $$;
             CREATE TRIGGER excludes AFTER INSERT ON tower_lock.lease FOR EACH ROW EXECUTE FUNCTION excludes()"
        ))
        .await;
    let processes = (0..4).map(async |number| {
        let process = Process {
            client: server.client().await,
            number,
            is_old: old(number),
            random: fastrand::Rng::with_seed(number as u64),
            granted: HashMap::new(),
        };
        tokio::spawn(process.steps()).await.unwrap()
    });
    let all = join_all(processes).await;
    for mode in MODES {
        let grants = all.iter().flatten().filter(|((_, of), _)| *of == mode);
        let count: usize = grants.map(|(_, counters)| counters.len()).sum();
        assert!(
            count > 50 || mode == "p" && (0..4).all(&old),
            "{mode}: {count}"
        );
    }
    // Grants of different keys may share a counter, and those of one key do not. A repeat of a lease may.
    for key in ["k0", "k1", "k2", "k3"] {
        let of_key = all.iter().flatten().filter(|((of, _), _)| of == key);
        let mut counters: Vec<_> = of_key.clone().flat_map(|(_, grants)| grants).collect();
        counters.sort_unstable();
        counters.dedup();
        let count = counters.len();
        counters.dedup_by_key(|(counter, _)| *counter);
        assert_eq!(counters.len(), count, "{key}");
        for ((_, mode), grants) in of_key {
            let is_sorted = grants.is_sorted_by_key(|(counter, _)| *counter);
            assert!(is_sorted || *mode != "x", "{key}: {grants:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_batches_keep_exclusion_and_order() {
    granted(|_| false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_batches_of_two_versions_keep_exclusion() {
    granted(|number| number % 2 == 0).await;
}

/// After a vacuum of an empty table, the planner expects one row, and takes a scan of the whole index for a cheap one.
#[tokio::test]
async fn batch_reads_no_dead_rows_of_other_keys() {
    const DEAD: u64 = 20_000;
    let server = PostgresServer::start(&["autovacuum=off"]).await;
    let _backend = backend(&server).await;
    let (client, old) = (server.client().await, server.client().await);
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM tower_lock.lease";
    old.batch_execute(begin).await.unwrap();
    let dead = format!(
        "INSERT INTO tower_lock.lease SELECT 'dead:' || i, i, i, 'l', 'x', to_timestamp(1)
        FROM generate_series(1, {DEAD}) i; DELETE FROM tower_lock.lease"
    );
    client.batch_execute(&dead).await.unwrap();
    let vacuum = "VACUUM ANALYZE tower_lock.lease";
    client.batch_execute(vacuum).await.unwrap();
    let arrays = "array_agg('k' || i), array_agg('l'::text)";
    let of_32 = "FROM generate_series(1, 32) i";
    let acquire = format!(
        "SELECT tower_lock.acquire(keys, leases, modes, ttls, 1e11, false) FROM (SELECT {arrays},
        array_agg('x'::text), array_agg(1000::int8) {of_32}) a(keys, leases, modes, ttls)"
    );
    let release = format!(
        "SELECT tower_lock.release_2(keys, leases, leaves)
        FROM (SELECT {arrays}, array_agg(false) {of_32}) a(keys, leases, leaves)"
    );
    let renew = format!(
        "SELECT tower_lock.renew(keys, leases, modes, ttls) FROM (SELECT {arrays},
        array_agg('x'::text), array_agg(1000::int8) {of_32}) a(keys, leases, modes, ttls)"
    );
    for command in [&acquire, &renew, &release, &acquire, &renew, &release] {
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS) {command}");
        let rows = client.query(&explain, &[]).await.unwrap();
        let text: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let read = text.iter().find_map(|line| line.split_once("shared hit="));
        let read = read.unwrap().1.split(' ').next().unwrap();
        assert!(read.parse::<u64>().unwrap() < DEAD / 4, "{text:#?}");
    }
}
