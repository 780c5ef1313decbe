//! The stores in memory keep the contract of a backend.

mod faulty;

use tower_lock::backend::{QuorumBuilder, conformance};
use tower_lock::{Memory, Quorum};

#[tokio::test(start_paused = true)]
async fn memory_passes_conformance() {
    let memory = Memory::new();
    conformance::all(&memory, &memory.clone()).await;
    conformance::all_of_node(&memory, &memory.clone()).await;
}

async fn quorum_keeps_contract(nodes: usize) {
    let stores: Vec<_> = (0..nodes).map(|_| Memory::new()).collect();
    let quorum = || {
        let stores = stores.iter().cloned();
        let builder = stores.fold(Quorum::builder(), QuorumBuilder::node);
        builder.build().unwrap()
    };
    conformance::all(&quorum(), &quorum()).await;
}

#[tokio::test(start_paused = true)]
async fn quorum_of_three_passes_conformance() {
    quorum_keeps_contract(3).await;
}

#[tokio::test(start_paused = true)]
async fn quorum_of_five_passes_conformance() {
    quorum_keeps_contract(5).await;
}
