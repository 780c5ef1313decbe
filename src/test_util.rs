//! Runtimes, suspends and jitter that a test controls. Not covered by semantic versioning.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A runtime whose tasks a test polls, pauses and drops.
pub trait SimulatedRuntime: Send + Sync {
    /// Returns the identity of the runtime, unique on its thread.
    fn id(&self) -> u64;

    /// Accepts a background task. A runtime that has ended drops it.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);
}

/// What a test has made the current runtime of a thread.
#[derive(Clone)]
pub(crate) enum Current {
    Simulated(Arc<dyn SimulatedRuntime>),
    /// No runtime, although one may drive the test.
    Outside,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
    static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static RANDOM: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes `runtime` the current one of this thread until the result is dropped.
#[must_use = "the runtime is current only while this value lives"]
pub fn enter(runtime: Arc<dyn SimulatedRuntime>) -> Entered {
    Entered::new(Current::Simulated(runtime))
}

/// Simulates code outside of any runtime on this thread until the result is dropped.
#[must_use = "the thread is outside of a runtime only while this value lives"]
pub fn leave() -> Entered {
    Entered::new(Current::Outside)
}

/// Keeps a simulated runtime current. See [`enter`] and [`leave`].
pub struct Entered {
    outer: Option<Current>,
}

impl Entered {
    fn new(current: Current) -> Self {
        let outer = CURRENT.with(|outer| outer.replace(Some(current)));
        Self { outer }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with(|current| current.replace(self.outer.take()));
    }
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").finish_non_exhaustive()
    }
}

pub(crate) fn current() -> Option<Current> {
    CURRENT.with(|current| current.borrow().clone())
}

/// Adds `duration` to the time that this machine has been suspended, as seen by this thread.
pub fn suspend(duration: Duration) {
    SUSPENDED.with(|suspended| suspended.set(suspended.get() + duration));
}

/// Returns how long [`suspend`] has suspended this thread in total.
pub(crate) fn suspended() -> Duration {
    SUSPENDED.with(Cell::get)
}

/// Makes all jitter on this thread follow from `seed`.
pub fn seed(seed: u64) {
    RANDOM.with(|random| random.set(Some(seed)));
}

/// Returns the next random number, or `None` on a thread without a [`seed`].
pub(crate) fn random() -> Option<u64> {
    // SplitMix64.
    let state = RANDOM.with(Cell::get)?.wrapping_add(0x9e37_79b9_7f4a_7c15);
    RANDOM.with(|random| random.set(Some(state)));
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Some(mixed ^ (mixed >> 31))
}
