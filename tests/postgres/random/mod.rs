//! Random steps of the queue against a reference.

mod comparison;
mod draw;
mod model;

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

use tokio::time::timeout;

use super::LONG;
use super::support::steps::number;
use comparison::Comparison;

/// `QUEUE_STEPS`: their number, 2,000 unless set. `QUEUE_SEED`: one seed instead of a random one.
#[tokio::test]
async fn random_steps_follow_reference() {
    let steps = number("QUEUE_STEPS").unwrap_or(2_000);
    let seed = number("QUEUE_SEED").unwrap_or_else(|| fastrand::u64(..));
    let mut comparison = Comparison::new(seed).await;
    for step in 0..steps {
        let taken = timeout(LONG / 4, comparison.step());
        let taken = taken.map(|it| it.expect("the server waits for a row"));
        if let Err(panic) = AssertUnwindSafe(taken).catch_unwind().await {
            eprintln!("QUEUE_SEED={seed}, step {step}");
            eprintln!("after {:?}", comparison.history());
            std::panic::resume_unwind(panic);
        }
    }
    eprintln!("QUEUE_SEED={seed}: {:?}", comparison.reached);
    let count = |case| comparison.reached.get(case).copied().unwrap_or(0);
    assert!(steps < 2_000 || count("granted") > 10 && count("transferred") > 10);
    for case in comparison::CASES {
        assert!(steps < 20_000 || count(case) > 0, "{case}");
    }
}
