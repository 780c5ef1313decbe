//! Random steps against the reference.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tower_lock::backend::redis::RedisBackend;

use super::comparison::Comparison;
use super::model::Counted;
use super::scripts::SOURCES;
use crate::support::redis_server::RedisServer;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

/// `QUEUE_STEPS`: their number, 2,000 unless set. `QUEUE_SEED`: one seed instead of a random one.
#[test]
fn random_steps_follow_reference() {
    let steps = number("QUEUE_STEPS").unwrap_or(2_000);
    let seed = number("QUEUE_SEED").unwrap_or_else(|| fastrand::u64(..));
    let (mut granted, mut transferred) = (0, 0);
    for counted in [Counted::All, Counted::Ours, Counted::Nothing] {
        let mut comparison = Comparison::new(seed, counted);
        let count = if counted == Counted::All {
            steps / 2
        } else {
            steps / 4
        };
        for step in 0..count {
            let taken = catch_unwind(AssertUnwindSafe(|| comparison.step()));
            if let Err(panic) = taken {
                eprintln!("QUEUE_SEED={seed}, {counted:?}, step {step}");
                resume_unwind(panic);
            }
        }
        granted += comparison.granted;
        transferred += comparison.transferred;
    }
    eprintln!("QUEUE_SEED={seed}: {granted} grants, {transferred} transfers to listeners");
    assert!(steps < 2_000 || granted > 10 && transferred > 10);
}

/// Else the reference would be of other scripts.
#[tokio::test]
async fn backend_loads_scripts_of_reference() {
    let server = RedisServer::start();
    let _backend = RedisBackend::builder(server.url()).connect().await.unwrap();
    for source in SOURCES {
        let sha = redis::Script::new(source).get_hash().to_owned();
        assert_eq!(server.cli(&["SCRIPT", "EXISTS", &sha]), "1", "{source}");
    }
}
