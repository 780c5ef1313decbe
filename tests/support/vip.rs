//! A virtual address, as a service name or a load balancer provides it: new connections lead to the present target, and
//! open ones stay where they are.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// It ends when dropped.
pub(crate) struct Vip {
    port: u16,
    target: Arc<AtomicU16>,
    accepted: Arc<Mutex<Vec<Instant>>>,
    acceptor: JoinHandle<()>,
}

impl Vip {
    pub(crate) async fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Self::on(listener, target)
    }

    /// Starts at a port that is already known.
    pub(crate) fn on(listener: TcpListener, target: u16) -> Self {
        let port = listener.local_addr().expect("its number").port();
        let target = Arc::new(AtomicU16::new(target));
        let accepted = Arc::<Mutex<Vec<Instant>>>::default();
        let (now, times) = (Arc::clone(&target), Arc::clone(&accepted));
        let acceptor = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                times.push(Instant::now());
                let target = now.load(Ordering::SeqCst);
                drop(tokio::spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await {
                        drop(server.set_nodelay(true).and(client.set_nodelay(true)));
                        drop(copy_bidirectional(&mut client, &mut server).await);
                    }
                }));
            }
        });
        Self {
            port,
            target,
            accepted,
            acceptor,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Leads new connections to another port of this machine.
    pub(crate) fn lead_to(&self, target: u16) {
        self.target.store(target, Ordering::SeqCst);
    }

    /// Returns the most connections that clients opened within `window` since `start`.
    pub(crate) fn most_accepted(&self, start: Instant, window: Duration) -> usize {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        most_within(&accepted, start, window)
    }
}

/// Returns the most of these times since `start` that are within `window`.
pub(crate) fn most_within(times: &[Instant], start: Instant, window: Duration) -> usize {
    let since: Vec<_> = times.iter().filter(|at| **at >= start).collect();
    let within = |from: Instant| {
        let times = since.iter();
        times
            .filter(|at| ***at >= from && ***at - from < window)
            .count()
    };
    since.iter().map(|from| within(**from)).max().unwrap_or(0)
}

impl Drop for Vip {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}
