//! What a task leaves behind that ends while locks come and go.

use std::time::Duration;

use tokio::time::sleep;

use super::*;
use crate::backend::Memory;
use crate::lock::acquire::Acquire;
use crate::lock::options::Options;

const SECOND: Duration = Duration::from_secs(1);

fn engine() -> Arc<Engine> {
    let backend = Arc::new(Memory::new());
    Arc::new(Engine::new(backend, Options::default()))
}

fn acquire(engine: &Arc<Engine>, key: &'static str) -> Acquire {
    Acquire::new(Arc::clone(engine), LockKey::new(key).into())
}

#[tokio::test(start_paused = true)]
async fn a_time_that_nobody_serves_stands_in_nobodys_way() {
    let engine = engine();
    // Of a lock that was taken after the last walk, and given back before anybody looked again.
    engine.watchdog.wakes_at.store(Moment::now() + SECOND);
    let guard = acquire(&engine, "a").await.expect("free");
    sleep(100 * SECOND).await;
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn locks_of_a_moment_take_one_task_together() {
    let engine = engine();
    for _ in 0..5 {
        drop(acquire(&engine, "a").await.expect("free"));
        sleep(SECOND).await;
        // It sleeps until a third of the lease has passed.
        assert!(engine.watchdog.running.load(Ordering::SeqCst));
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_task_was_told_the_next_one_finds() {
    let engine = engine();
    // A task is about to end: it has walked, and does not look at its time any more.
    engine.watchdog.running.store(true, Ordering::SeqCst);
    let held = acquire(&engine, "a").lease(SECOND).await.expect("free");
    drop(Running(Arc::downgrade(&engine)));
    let _other = acquire(&engine, "b").await.expect("free");
    // The holder stays for too long.
    let next = acquire(&engine, "a").wait(2 * SECOND).await;
    assert!(next.is_ok() && !held.is_held(), "{next:?}");
}
