//! Random steps against the reference.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tower_lock::backend::redis::Publish;
use tower_lock::backend::{AcquireRequest, Backend as _, LeaseId, Mode, Renewal};
use tower_lock::{LockKey, RedisBackend};
use uuid::Uuid;

use super::comparison::{CASES, Comparison, PERMIT_CASES};
use super::model::Counted;
use super::scripts::{Flavor, SCRIPTS, source};
use crate::support::engine::SECOND;
use crate::support::process::version;
use crate::support::redis_server::RedisServer;
use crate::support::steps::number;

/// Sharded messages are new in 7.0.
fn has_sharded_messages() -> bool {
    version() >= 7
}

/// `QUEUE_STEPS`: their number, 2,000 unless set. `QUEUE_SEED`: one seed instead of a random one.
#[test]
fn random_steps_follow_reference() {
    let steps = number("QUEUE_STEPS").unwrap_or(2_000);
    let seed = number("QUEUE_SEED").unwrap_or_else(|| fastrand::u64(..));
    let (mut granted, mut transferred) = (0, 0);
    let mut reached = BTreeMap::new();
    // The tenths of the steps.
    let (plain, sharded) = if has_sharded_messages() {
        (3, 1)
    } else {
        (6, 0)
    };
    let kinds = [
        (Counted::All, Flavor::Plain, plain),
        (Counted::Ours, Flavor::Plain, 1),
        (Counted::Nothing, Flavor::Plain, 1),
        (Counted::All, Flavor::Guarded, 2),
        (Counted::All, Flavor::Sharded, sharded),
        (Counted::All, Flavor::Both, sharded),
        (Counted::Ours, Flavor::Both, sharded),
    ];
    assert_eq!(kinds.iter().map(|it| it.2).sum::<u64>(), 10);
    let cases = || CASES.into_iter().chain(PERMIT_CASES);
    let are_enough = |granted, transferred| steps < 2_000 || granted > 10 && transferred > 10;
    // Some seeds have few leases of one mode, so one that misses a case is followed by two others.
    let seeds = seed..=seed.saturating_add(2);
    let kinds: Vec<_> = kinds.into_iter().filter(|it| it.2 > 0).collect();
    let runs = seeds.flat_map(|seed| kinds.iter().map(move |kind| (seed, *kind)));
    for (run, (seed, (counted, flavor, tenths))) in runs.enumerate() {
        let has_cases = steps < 50_000 || cases().all(|case| reached.contains_key(case));
        if run >= kinds.len() && has_cases && are_enough(granted, transferred) {
            break;
        }
        let mut comparison = Comparison::new(seed, counted, flavor);
        for step in 0..steps * tenths / 10 {
            let taken = catch_unwind(AssertUnwindSafe(|| comparison.step()));
            if let Err(panic) = taken {
                eprintln!("QUEUE_SEED={seed}, {counted:?}, {flavor:?}, step {step}");
                eprintln!("after {:?}", comparison.last);
                resume_unwind(panic);
            }
        }
        granted += comparison.granted;
        transferred += comparison.transferred;
        for (case, count) in comparison.reached {
            *reached.entry(case).or_insert(0) += count;
        }
    }
    eprintln!("QUEUE_SEED={seed}: {granted} grants, {transferred} transfers to listeners");
    eprintln!("shared leases and permits: {reached:?}");
    assert!(are_enough(granted, transferred));
    for case in cases() {
        assert!(steps < 50_000 || reached.contains_key(case), "{case}");
    }
}

/// Nothing else checks it, because the benchmark is a workspace of its own.
#[test]
fn benchmark_calls_release_script_of_backend() {
    let formats = include_str!("../../../benches/compare/src/scenarios/release/formats.rs");
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../src/backend/redis/command/lua/"
    );
    let piece = |line: &str| {
        let (_, file) = line.split_once("/lua/")?;
        let file = file.strip_suffix("\"),")?;
        Some(std::fs::read_to_string(format!("{folder}{file}")).unwrap())
    };
    let pieces = formats.lines().filter_map(|line| piece(line.trim()));
    assert_eq!(pieces.collect::<String>(), source("release", Flavor::Plain));
}

/// Else the reference would be of other scripts.
#[tokio::test]
async fn backend_loads_scripts_of_reference() {
    let sharded = [Flavor::Sharded, Flavor::Both];
    let sharded = sharded.into_iter().filter(|_| has_sharded_messages());
    for flavor in [Flavor::Plain, Flavor::Guarded].into_iter().chain(sharded) {
        let server = RedisServer::start();
        let backend = RedisBackend::builder(server.url());
        let backend = match flavor {
            Flavor::Plain | Flavor::Implausible => backend,
            Flavor::Guarded => backend.quarantine(SECOND),
            Flavor::Sharded => backend.publish(Publish::Sharded),
            Flavor::Both => backend.publish(Publish::Both),
        };
        let backend = backend.connect().await.unwrap();
        // The first calls load the scripts of shared leases, also in a quarantine.
        let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::new_v4(), 1));
        let request = AcquireRequest::new(key.clone(), lease, SECOND).with_mode(Mode::Shared);
        drop(backend.try_acquire(&request).await);
        let renewal = Renewal::new(key, lease, SECOND).with_mode(Mode::Shared);
        drop(backend.downgrade(&renewal).await);
        drop(backend.renew(&[renewal]).await);
        for script in SCRIPTS {
            let sha = redis::Script::new(&source(script, flavor));
            let exists = server.cli(&["SCRIPT", "EXISTS", sha.get_hash()]);
            assert_eq!(exists, "1", "{script}, {flavor:?}");
        }
    }
}
