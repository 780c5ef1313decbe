//! Commands of many keys, as any process may send them: repeated keys and leases, held keys, and mutexes of others.

use std::collections::HashMap;

use futures_util::future::join_all;
use tokio_postgres::Client;

use super::backend;
use super::support::postgres_server::PostgresServer;

const ACQUIRE: &str =
    "SELECT n, counter, ttl_ms FROM tower_lock.acquire($1, $2, $3, $4, $5, false)";
const RELEASE: &str = "SELECT n, was_held FROM tower_lock.release($1, $2)";
const TTL: i64 = 60_000;

/// Returns random attempts: keys, leases and modes.
fn attempts(random: &mut fastrand::Rng, session: usize, most: usize) -> [Vec<String>; 3] {
    let mut attempts = [const { Vec::new() }; 3];
    for _ in 0..random.usize(1..=most) {
        let lease = random.usize(0..6);
        attempts[0].push(format!("k{}", random.usize(0..4)));
        attempts[1].push(format!("{session}:{lease}"));
        attempts[2].push(["x", "s"][lease % 2].to_owned());
    }
    attempts
}

async fn is_held(client: &Client, key: &String, lease: &String) -> bool {
    let held = "SELECT EXISTS (SELECT FROM tower_lock.lease WHERE key = $1 AND lease = $2)";
    let row = client.query_one(held, &[key, lease]).await;
    row.unwrap().get(0)
}

/// Sends random batches. Returns the counters of its grants of each key and mode, in the order of its commands.
async fn steps(client: Client, session: usize) -> HashMap<(String, String), Vec<i64>> {
    let mut random = fastrand::Rng::with_seed(session as u64);
    let mut granted: HashMap<_, Vec<i64>> = HashMap::new();
    let late = i64::from(i32::MAX) as f64;
    for _ in 0..150 {
        let [keys, leases, modes] = attempts(&mut random, session, 8);
        let ttls = vec![TTL; keys.len()];
        let rows = client
            .query(ACQUIRE, &[&keys, &leases, &modes, &ttls, &late])
            .await
            .unwrap();
        assert_eq!(rows.len(), keys.len(), "one row for each");
        for row in rows {
            let at = usize::try_from(row.get::<_, i64>(0)).unwrap() - 1;
            let (counter, ttl): (Option<i64>, Option<i64>) = (row.get(1), row.get(2));
            assert!(counter.is_none() || ttl.is_none());
            let Some(counter) = counter else { continue };
            let of_key = granted.entry((keys[at].clone(), modes[at].clone()));
            of_key.or_default().push(counter);
            assert!(is_held(&client, &keys[at], &leases[at]).await);
        }
        let [keys, leases, _] = attempts(&mut random, session, 60);
        let rows = client.query(RELEASE, &[&keys, &leases]).await.unwrap();
        assert_eq!(rows.len(), keys.len(), "one row for each");
        for row in rows {
            let at = usize::try_from(row.get::<_, i64>(0)).unwrap() - 1;
            let was_held: Option<bool> = row.get(1);
            let is_held = is_held(&client, &keys[at], &leases[at]).await;
            assert!(was_held.is_none() || !is_held);
        }
    }
    granted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_batches_keep_exclusion_and_order() {
    let server = PostgresServer::start(&[]).await;
    let _backend = backend(&server).await;
    // A grant beside one that excludes it fails in each session.
    server
        .run(
            "CREATE FUNCTION excludes() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
               IF EXISTS (SELECT FROM tower_lock.lease WHERE key = NEW.key AND lease <> NEW.lease
                 AND (mode = 'x' OR NEW.mode = 'x')) THEN RAISE EXCEPTION 'two owners'; END IF;
               RETURN NULL;
             END $$;
             CREATE TRIGGER excludes AFTER INSERT ON tower_lock.lease FOR EACH ROW EXECUTE FUNCTION excludes()",
        )
        .await;
    let sessions = (0..4).map(async |session| {
        let client = server.client().await;
        tokio::spawn(steps(client, session)).await.unwrap()
    });
    let all = join_all(sessions).await;
    for mode in ["x", "s"] {
        let grants = all.iter().flatten().filter(|((_, of), _)| of == mode);
        assert!(grants.map(|(_, counters)| counters.len()).sum::<usize>() > 50);
    }
    // Grants of different keys may share a counter, and those of one key do not.
    for key in ["k0", "k1", "k2", "k3"] {
        let of_key = all.iter().flatten().filter(|((of, _), _)| of == key);
        let of_session = of_key.clone().map(|(_, counters)| counters);
        let mut counters: Vec<_> = of_key.flat_map(|(_, counters)| counters).collect();
        let count = counters.len();
        counters.sort_unstable();
        counters.dedup();
        assert_eq!(counters.len(), count, "{key}");
        for counters in of_session {
            assert!(counters.is_sorted(), "{key}: {counters:?}");
        }
    }
}
