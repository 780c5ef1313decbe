//! A command whose connection ended arrives after its repeat, as over a proxy that still has its bytes.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tower_lock::backend::{
    AcquireRequest, Acquired, Backend, Contended, KeepRequest, LeaseId, Release, Released,
    ReleasedOrKept, Renewal, Renewed,
};
use tower_lock::{LockKey, RedisBackend};
use uuid::Uuid;

use crate::support::redis_server::RedisServer;

const PATIENCE: Duration = Duration::from_secs(10);
const TTL: Duration = Duration::from_secs(30);

/// What happens to the next command. The test and the proxy take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Forwarded,
    /// The proxy keeps it, and ends the connection of the client.
    Held,
    Delivered,
    Executed,
}

async fn serve(port: u16, next: watch::Sender<Next>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    drop(tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            drop(tokio::spawn(forward(client, port, next.clone())));
        }
    }));
    url
}

async fn forward(
    mut client: TcpStream,
    port: u16,
    next: watch::Sender<Next>,
) -> std::io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut commands, mut replies) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            read = client.read(&mut commands) => {
                let bytes = read?;
                if bytes == 0 {
                    return Ok(());
                }
                let is_held = next.send_if_modified(|next| {
                    let is_held = *next == Next::Held;
                    *next = if is_held { Next::Forwarded } else { *next };
                    is_held
                });
                if is_held {
                    drop(client);
                    let mut turns = next.subscribe();
                    drop(turns.wait_for(|next| *next == Next::Delivered).await);
                    server.write_all(&commands[..bytes]).await?;
                    let _read = server.read(&mut replies).await?;
                    next.send_replace(Next::Executed);
                    return Ok(());
                }
                server.write_all(&commands[..bytes]).await?;
            }
            read = server.read(&mut replies) => {
                let bytes = read?;
                if bytes == 0 {
                    return Ok(());
                }
                client.write_all(&replies[..bytes]).await?;
            }
        }
    }
}

/// Delivers the command that the proxy keeps, and waits for its reply.
async fn deliver(next: &watch::Sender<Next>) {
    assert_eq!(*next.borrow(), Next::Forwarded, "one attempt was held");
    next.send_replace(Next::Delivered);
    let mut turns = next.subscribe();
    let executed = timeout(PATIENCE, turns.wait_for(|next| *next == Next::Executed));
    drop(executed.await.unwrap().unwrap());
}

async fn connect(url: String) -> RedisBackend {
    let builder = RedisBackend::builder(url).response_timeout(PATIENCE);
    builder.connect().await.unwrap()
}

/// The repeat finds no other process that waits, and the first attempt finds one.
#[tokio::test]
async fn late_release_or_keep_ends_no_kept_lease() {
    let server = RedisServer::start();
    let next = watch::Sender::new(Next::Forwarded);
    let url = serve(server.port(), next.clone()).await;
    let (direct, backend) = (connect(server.url()).await, connect(url).await);
    let (key, lease) = (LockKey::new("k"), LeaseId::new(Uuid::new_v4(), 1));
    let request = AcquireRequest::new(key.clone(), lease, TTL);
    let acquired = backend.try_acquire(&request).await.unwrap();
    assert!(matches!(acquired, Acquired::Granted { .. }));
    next.send_replace(Next::Held);
    let request = KeepRequest::new(key.clone(), lease, TTL);
    let outcome = backend
        .release_or_keep(std::slice::from_ref(&request))
        .await
        .remove(0)
        .unwrap();
    let mut hints = direct.watch(&key, Uuid::new_v4());
    let confirmed = timeout(PATIENCE, hints.next()).await;
    confirmed.expect("the subscription is confirmed");
    deliver(&next).await;
    let renewal = Renewal::new(key, lease, TTL);
    let renewed = direct.renew(&[renewal]).await.remove(0).unwrap();
    match outcome {
        ReleasedOrKept::Kept { .. } => assert_eq!(renewed, Renewed::Renewed, "kept, and ended"),
        ReleasedOrKept::Released { .. } => assert_eq!(renewed, Renewed::NotHeld),
        outcome => panic!("{outcome:?}"),
    }
}

/// The first attempt arrives after the lock was released. No process has the lease that it takes.
#[tokio::test]
async fn late_acquire_blocks_key_for_one_lease() {
    const SHORT: Duration = Duration::from_millis(500);
    let server = RedisServer::start();
    let next = watch::Sender::new(Next::Forwarded);
    let url = serve(server.port(), next.clone()).await;
    let (direct, backend) = (connect(server.url()).await, connect(url).await);
    for contends in [false, true] {
        let key = LockKey::new(format!("k{contends}"));
        let lease = LeaseId::new(Uuid::new_v4(), 1);
        next.send_replace(Next::Held);
        if contends {
            let request = AcquireRequest::new(key.clone(), lease, SHORT);
            let outcome = backend.contend(&request).await.unwrap();
            assert!(matches!(outcome, Contended::Granted { .. }), "{outcome:?}");
        } else {
            let request = AcquireRequest::new(key.clone(), lease, SHORT);
            let outcome = backend.try_acquire(&request).await.unwrap();
            assert!(matches!(outcome, Acquired::Granted { .. }), "{outcome:?}");
        }
        let release = [Release::new(key.clone(), lease)];
        let released = backend.release(&release).await.remove(0).unwrap();
        assert!(matches!(released, Released::Released), "{released:?}");
        deliver(&next).await;
        let delivered = Instant::now();
        let other = AcquireRequest::new(key, LeaseId::new(Uuid::new_v4(), 1), TTL);
        while let Acquired::Busy { ttl, .. } = direct.try_acquire(&other).await.unwrap() {
            assert!(ttl <= SHORT, "{ttl:?}");
            assert!(
                delivered.elapsed() < PATIENCE,
                "blocked for more than a lease"
            );
            sleep(ttl.max(Duration::from_millis(1))).await;
        }
        assert!(delivered.elapsed() > SHORT / 2, "the copy had no effect");
    }
}
