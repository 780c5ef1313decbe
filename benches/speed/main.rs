//! Speed of tower-lock: `cargo bench -p tests --bench speed`. It starts its own Redis server and prints a Markdown
//! table.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::cast_precision_loss
)]

#[cfg(feature = "dashboard")]
mod dashboard;
mod layer;
#[path = "../../tests/support/preloaded.rs"]
#[allow(dead_code)]
mod preloaded;
#[path = "../../tests/support/process.rs"]
#[allow(dead_code)]
mod process;
mod redis;
#[path = "../../tests/support/redis_server.rs"]
#[allow(dead_code)]
mod redis_server;
mod scripts;
mod table;

fn main() {
    // `cargo test --benches` passes this option, and this program has no tests.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut table = table::Table::new();
    if runs("layer") {
        layer::allocations(&mut table);
        runtime.block_on(layer::overhead(&mut table));
    }
    #[cfg(feature = "dashboard")]
    if runs("walk") {
        runtime.block_on(dashboard::walk(&mut table));
    }
    runtime.block_on(async {
        let server = redis_server::RedisServer::start();
        if runs("hot") {
            redis::hot_keys(&server, &mut table).await;
        }
        if runs("latency") {
            redis::latency(&server, &mut table).await;
        }
        if runs("distinct") {
            redis::distinct_keys(&server, &mut table).await;
        }
    });
    table.print();
}
