//! A way to Redis that takes a constant time, as another zone of a data center does.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{sleep, spawn};
use std::time::Duration;

use tokio::time::Instant;

/// Forwards connections to a port of this machine, each byte after half of a round trip. It ends with the process.
pub(super) struct Distance {
    port: u16,
}

/// Bytes under way. None at all are the end of a direction.
struct Sent {
    due: Instant,
    bytes: Vec<u8>,
    to: Arc<TcpStream>,
}

impl Distance {
    pub(super) fn start(target: u16, round_trip: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its number").port();
        let (under_way, arriving) = channel();
        // All bytes take as long, so they arrive in their order. Threads sleep more exactly than timers of a runtime.
        spawn(move || deliver(&arriving));
        spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else {
                    continue;
                };
                let ends = [client, server].map(Arc::new);
                for (from, to) in [(0, 1), (1, 0)] {
                    let [from, to] = [from, to].map(|end| Arc::clone(&ends[end]));
                    drop(to.set_nodelay(true));
                    let under_way = under_way.clone();
                    spawn(move || send(&from, &to, round_trip / 2, &under_way));
                }
            }
        });
        Self { port }
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

fn send(mut from: &TcpStream, to: &Arc<TcpStream>, delay: Duration, under_way: &Sender<Sent>) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut buffer).unwrap_or(0);
        let sent = Sent {
            due: Instant::now() + delay,
            bytes: buffer[..length].to_vec(),
            to: Arc::clone(to),
        };
        if under_way.send(sent).is_err() || length == 0 {
            return;
        }
    }
}

fn deliver(arriving: &Receiver<Sent>) {
    for Sent { due, bytes, to } in arriving {
        sleep(due.saturating_duration_since(Instant::now()));
        // A connection that has failed fails for its other end as well.
        if bytes.is_empty() || (&*to).write_all(&bytes).is_err() {
            drop(to.shutdown(Shutdown::Both));
        }
    }
}
