//! A runtime that ends or blocks while it dials a connection, which other runtimes wait for.

use std::num::NonZeroUsize;
use std::sync::mpsc::channel;
use std::time::Duration;

use futures_util::poll;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};
use tower_lock::backend::Backend as _;
use tower_lock::{LockKey, LockManager, RedisBackend};

use crate::support::engine::{MS, SECOND, eventually};
use crate::support::other_runtime::current_thread;
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

/// The delay of the bytes in each direction. A handshake takes at least twice as long.
const DELAY: Duration = Duration::from_millis(300);
/// Its watchdog renews after 10 s.
const LEASE: Duration = Duration::from_secs(30);

/// A server behind a proxy in a runtime of its own, and a backend with one connection.
struct World {
    server: RedisServer,
    proxy: Proxy,
    _network: Runtime,
    here: Runtime,
    backend: RedisBackend,
}

impl World {
    fn start() -> Self {
        let server = RedisServer::start();
        let network = multi_thread();
        let proxy = network.block_on(Proxy::start(server.port()));
        let here = current_thread();
        let builder = RedisBackend::builder(proxy.url()).connections(NonZeroUsize::MIN);
        let builder = builder
            .connect_timeout(5 * SECOND)
            .response_timeout(5 * SECOND);
        let backend = here.block_on(builder.connect()).unwrap();
        Self {
            server,
            proxy,
            _network: network,
            here,
            backend,
        }
    }

    /// Ends the connection. The dial of the next one takes a while.
    fn cut(&self) {
        self.proxy.delay(DELAY);
        self.proxy.cut();
    }

    /// Waits for a connection after these.
    fn dialled(&self, before: u64) {
        let dialled = || self.proxy.accepted() > before;
        self.here.block_on(eventually("a dial", dialled));
    }

    async fn inspect(backend: &RedisBackend) -> bool {
        backend.inspect(&LockKey::new("k")).await.is_ok()
    }
}

fn multi_thread() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn runtime_end_in_dial_fails_no_caller() {
    let world = World::start();
    let (before, there) = (world.proxy.accepted(), multi_thread());
    world.cut();
    let backend = world.backend.clone();
    drop(there.spawn(async move { World::inspect(&backend).await }));
    world.dialled(before);
    world.here.block_on(async {
        let mut waiting = Box::pin(World::inspect(&world.backend));
        assert!(poll!(&mut waiting).is_pending());
        there.shutdown_background();
        assert!(waiting.await, "a caller that waits for the dial");
        assert!(World::inspect(&world.backend).await, "a later caller");
    });
}

#[test]
fn runtime_end_in_dial_renews_idle_holder() {
    let world = World::start();
    let locks = LockManager::builder(world.backend.clone()).watchdog_timeout(LEASE);
    let locks = locks.build().unwrap();
    let guard = world
        .here
        .block_on(locks.acquire("k").into_future())
        .unwrap();
    let before = world.proxy.accepted();
    world.proxy.cut();
    world.dialled(before);
    assert!(world.here.block_on(World::inspect(&world.backend)));
    world.server.cli(&["DEL", "lock:k"]);
    let (before, there) = (world.proxy.accepted(), multi_thread());
    // The crate replaces the second connection after a pause, and a caller does at once.
    world.cut();
    let backend = world.backend.clone();
    drop(there.spawn(async move { World::inspect(&backend).await }));
    world.dialled(before);
    world.here.block_on(async {
        // Longer than the pause.
        sleep(100 * MS).await;
        there.shutdown_background();
        let lost = timeout(6 * SECOND, guard.lost()).await;
        lost.expect("the holder is notified");
    });
}

#[test]
fn runtime_blocked_in_dial_fails_no_caller() {
    let world = World::start();
    let there = multi_thread();
    world.cut();
    let (blocks, is_blocked) = channel();
    let (over, is_over) = channel::<()>();
    let backend = world.backend.clone();
    drop(there.spawn(async move {
        let mut inspect = Box::pin(World::inspect(&backend));
        // The dial is then in flight.
        tokio::select! {
            _ = &mut inspect => panic!("a reply over the connection that was cut"),
            () = sleep(DELAY / 2) => {}
        }
        blocks.send(()).unwrap();
        is_over.recv().unwrap_err();
        assert!(inspect.await, "its own caller");
        drop(blocks);
    }));
    is_blocked.recv().unwrap();
    let served = world.here.block_on(World::inspect(&world.backend));
    assert!(served, "a caller elsewhere");
    drop(over);
    is_blocked.recv().unwrap_err();
}
