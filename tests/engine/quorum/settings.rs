//! The settings of a quorum.

use std::time::Duration;

use tower_lock::{Memory, Quorum};

#[test]
fn even_or_single_node_count_is_rejected_with_advice() {
    for (nodes, advice) in [
        (0, "3 or 5"),
        (1, "3 or 5"),
        (2, "3 or 5"),
        (4, "add one"),
        (6, "add one"),
    ] {
        let builder = (0..nodes).fold(Quorum::builder(), |it, _| it.node(Memory::new()));
        let error = builder.build().unwrap_err();
        assert_eq!(error.field(), "node");
        assert!(error.to_string().contains(advice), "{error}");
    }
}

#[test]
fn quorum_with_one_store_twice_is_rejected() {
    let [one, other] = [Memory::new(), Memory::new()];
    let builder = Quorum::builder().node(one.clone()).node(other).node(one);
    let error = builder.build().unwrap_err();
    assert_eq!(error.field(), "node");
    assert!(
        error.to_string().contains("nodes 1 and 3 are one server"),
        "{error}"
    );
}

#[test]
fn node_timeout_out_of_bounds_is_rejected() {
    for timeout in [Duration::ZERO, Duration::from_secs(61)] {
        let builder = (0..3).fold(Quorum::builder(), |it, _| it.node(Memory::new()));
        let error = builder.node_timeout(timeout).build().unwrap_err();
        assert_eq!(error.field(), "node_timeout");
    }
}
