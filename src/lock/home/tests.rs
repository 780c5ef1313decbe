use tokio::runtime::{self, Builder};

use super::*;

fn runtime() -> runtime::Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn current(homes: &Homes, runtime: &runtime::Runtime) -> Current {
    let _entered = runtime.enter();
    homes.current().expect("a runtime with timers")
}

fn id(runtime: &runtime::Runtime) -> RuntimeId {
    RuntimeId::Tokio(runtime.handle().id())
}

/// Returns the ids of all known runtimes.
fn ids(homes: &Homes) -> Vec<RuntimeId> {
    homes.all().iter().map(|home| home.id).collect()
}

#[test]
fn runtime_is_new_once() {
    let (homes, one, two) = (Homes::new(None), runtime(), runtime());
    for runtime in [&one, &two] {
        assert!(matches!(current(&homes, runtime), Current::New(new) if new == id(runtime)));
        assert!(matches!(current(&homes, runtime), Current::Known(known) if known == id(runtime)));
    }
    assert!(matches!(current(&homes, &one), Current::Known(_)));
    assert_eq!(ids(&homes), [id(&one), id(&two)]);
}

#[test]
fn ended_runtime_is_pruned_at_next_begin() {
    let (homes, one, idle) = (Homes::new(None), runtime(), runtime());
    current(&homes, &one);
    current(&homes, &idle);
    drop(one);
    let new = runtime();
    current(&homes, &new);
    // A runtime that is not driven has not ended.
    assert_eq!(ids(&homes), [id(&idle), id(&new)]);
    assert_eq!(homes.any().map(|home| home.id), Some(id(&new)));
}

#[test]
fn ended_runtime_is_not_known() {
    let (homes, one) = (Homes::new(None), runtime());
    current(&homes, &one);
    homes.end(id(&one));
    assert!(homes.get(id(&one)).is_none() && homes.any().is_none());
    // The runtime was reported as ended by mistake, and still works.
    assert!(matches!(current(&homes, &one), Current::New(_)));
    assert!(homes.get(id(&one)).is_some());
}

#[test]
fn managers_on_one_thread_have_own_runtimes() {
    let (one, two, runtime) = (Homes::new(None), Homes::new(None), runtime());
    for homes in [&one, &two] {
        assert!(matches!(current(homes, &runtime), Current::New(_)));
    }
    for homes in [&one, &two, &one] {
        assert!(matches!(current(homes, &runtime), Current::Known(_)));
        assert_eq!(ids(homes), [id(&runtime)]);
    }
    // A runtime that ended for one manager stays known to the other.
    one.end(id(&runtime));
    assert!(matches!(current(&two, &runtime), Current::Known(_)));
    assert!(matches!(current(&one, &runtime), Current::New(_)));
}

#[test]
fn fixed_runtime_is_current_everywhere() {
    let (fixed, other) = (runtime(), runtime());
    let homes = Homes::new(Some(Runtime::Tokio(fixed.handle().clone())));
    let is_fixed = |current| matches!(current, Current::Known(home) if home == id(&fixed));
    assert!(is_fixed(homes.current().expect("outside of any runtime")));
    assert!(is_fixed(current(&homes, &other)));
    assert_eq!(ids(&homes), [id(&fixed)]);
}

#[test]
fn timers_are_checked_in_each_runtime() {
    let (fixed, with_timers) = (runtime(), runtime());
    let homes = Homes::new(Some(Runtime::Tokio(fixed.handle().clone())));
    let without_timers = Builder::new_current_thread().build().expect("a runtime");
    let has_timers = |runtime: &runtime::Runtime| {
        let _entered = runtime.enter();
        homes.has_timers()
    };
    assert!(!homes.has_timers(), "outside of a runtime");
    for _ in 0..2 {
        assert!(!has_timers(&without_timers));
        assert!(has_timers(&with_timers));
        assert!(has_timers(&with_timers));
    }
}

#[test]
fn runtime_without_timers_is_rejected_each_time() {
    let homes = Homes::new(None);
    let kind = |homes: &Homes| homes.current().expect_err("rejected").kind();
    assert_eq!(
        kind(&homes),
        ErrorKind::Misconfigured,
        "outside of a runtime"
    );
    let without_timers = Builder::new_current_thread().build().expect("a runtime");
    let _entered = without_timers.enter();
    for _ in 0..2 {
        assert_eq!(kind(&homes), ErrorKind::Misconfigured);
    }
    assert!(homes.any().is_none());
}

#[test]
fn check_of_timers_registers_no_runtime() {
    let (homes, runtime) = (Homes::new(None), runtime());
    let entered = runtime.enter();
    assert!(homes.has_timers());
    drop(entered);
    assert!(matches!(current(&homes, &runtime), Current::New(_)));
}
