//! A TCP proxy in front of a server, with faults of networks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Forwards connections to a port of this machine until a fault is set. It ends when dropped.
pub(crate) struct Proxy {
    port: u16,
    rules: watch::Sender<Rules>,
    accepted: Arc<AtomicU64>,
    scripts: Arc<AtomicU64>,
    acceptor: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Rules {
    swallow: Option<Swallow>,
    delay: Duration,
    /// The most bytes of a piece of data.
    most: Option<usize>,
    refuse: bool,
    drops_messages: bool,
    /// The number of times that all connections were cut.
    cuts: u64,
    /// The number of times that the current connections were held up, and whether they still are.
    freezes: u64,
    frozen: bool,
    /// The number of limits on the current connections, and the last one.
    truncations: u64,
    truncation: Option<(Direction, usize)>,
}

/// The direction in which bytes are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Swallow {
    /// The bytes of the client.
    Commands,
    /// The bytes of the server.
    Answers,
    /// The bytes of both: the connection is half-open, and neither side is notified.
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl Rules {
    fn swallows(&self, direction: Direction) -> bool {
        match self.swallow {
            None => false,
            Some(Swallow::Commands) => direction == Direction::Up,
            Some(Swallow::Answers) => direction == Direction::Down,
            Some(Swallow::Both) => true,
        }
    }
}

impl Proxy {
    pub(crate) async fn start(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its number").port();
        let (rules, seen) = watch::channel(Rules::default());
        let accepted = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&accepted);
        let scripts = Arc::<AtomicU64>::default();
        let calls = Arc::clone(&scripts);
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                let now = *seen.borrow();
                if now.refuse {
                    reset(&client);
                } else {
                    let (calls, seen) = (Arc::clone(&calls), seen.clone());
                    let forward = connection(client, target, now.cuts, seen, calls);
                    drop(tokio::spawn(forward));
                }
            }
        });
        Self {
            port,
            rules,
            accepted,
            scripts,
            acceptor,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the number of connections that clients opened.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Returns the number of script calls that clients sent, whatever their outcome. It misses a name that
    /// two reads split.
    pub(crate) fn scripts(&self) -> u64 {
        self.scripts.load(Ordering::SeqCst)
    }

    /// Drops the bytes of this direction from now on, in new connections as well. Ends of connections are
    /// dropped too.
    pub(crate) fn swallow(&self, what: Swallow) {
        self.rules.send_modify(|rules| rules.swallow = Some(what));
    }

    /// Delays each piece of data by this time in each direction.
    pub(crate) fn delay(&self, delay: Duration) {
        self.rules.send_modify(|rules| rules.delay = delay);
    }

    /// Delays each piece of data as `delay` does, of which none is longer than this.
    pub(crate) fn split(&self, most: usize, delay: Duration) {
        self.rules.send_modify(|rules| {
            rules.most = Some(most);
            rules.delay = delay;
        });
    }

    /// Resets new connections at once.
    pub(crate) fn refuse(&self) {
        self.rules.send_modify(|rules| rules.refuse = true);
    }

    /// Drops the messages of subscriptions. A message that two reads split passes.
    pub(crate) fn drop_messages(&self) {
        self.rules.send_modify(|rules| rules.drops_messages = true);
    }

    /// Holds up the current connections without losing bytes. New connections pass.
    pub(crate) fn freeze(&self) {
        self.rules.send_modify(|rules| {
            rules.freezes += 1;
            rules.frozen = true;
        });
    }

    pub(crate) fn thaw(&self) {
        self.rules.send_modify(|rules| rules.frozen = false);
    }

    /// Resets all connections, on both sides.
    pub(crate) fn cut(&self) {
        self.rules.send_modify(|rules| rules.cuts += 1);
    }

    /// Lets the next `bytes` bytes of the client pass in each current connection, and then resets both
    /// sides. New connections pass.
    pub(crate) fn truncate_commands(&self, bytes: usize) {
        self.truncate(Direction::Up, bytes);
    }

    /// Lets the next `bytes` bytes of the server pass in each current connection, and then resets both
    /// sides. New connections pass.
    pub(crate) fn truncate_answers(&self, bytes: usize) {
        self.truncate(Direction::Down, bytes);
    }

    fn truncate(&self, direction: Direction, bytes: usize) {
        self.rules.send_modify(|rules| {
            rules.truncations += 1;
            rules.truncation = Some((direction, bytes));
        });
    }

    /// Ends all faults. Connections that have lost bytes stay silent.
    pub(crate) fn heal(&self) {
        self.rules.send_modify(|rules| {
            *rules = Rules {
                cuts: rules.cuts,
                freezes: rules.freezes,
                truncations: rules.truncations,
                ..Rules::default()
            };
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.cut();
    }
}

/// Makes the drop of `stream` send RST instead of FIN.
fn reset(stream: &TcpStream) {
    drop(SockRef::from(stream).set_linger(Some(Duration::ZERO)));
}

/// Forwards one connection. `cuts`: the number of cuts when it was accepted. A later cut ends it even if it
/// is not connected to the server yet. Otherwise it would lose its first reply to a fault from before the
/// cut, and its client would stay silent.
async fn connection(
    mut client: TcpStream,
    target: u16,
    cuts: u64,
    mut rules: watch::Receiver<Rules>,
    scripts: Arc<AtomicU64>,
) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", target)).await else {
        return reset(&client);
    };
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    let (up, down) = (rules.clone(), rules.clone());
    let ended = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            ended = pump(from_client, to_server, up, Direction::Up, &scripts) => ended,
            ended = pump(from_server, to_client, down, Direction::Down, &scripts) => ended,
            _ = rules.wait_for(|now| now.cuts > cuts) => Err(()),
        }
    };
    if ended.is_err() {
        reset(&client);
        reset(&server);
    }
}

/// Copies until the end of the stream or its reset.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut rules: watch::Receiver<Rules>,
    direction: Direction,
    scripts: &AtomicU64,
) -> Result<(), ()> {
    let born = *rules.borrow();
    let (mut truncations, mut passed) = (born.truncations, 0);
    let mut buffer = vec![0; 64 * 1024];
    let mut silent = false;
    loop {
        // The next piece of a connection that reads is of the former size.
        let most = rules.borrow().most.unwrap_or(buffer.len());
        let read = from.read(&mut buffer[..most]).await;
        let now = *rules.borrow();
        if let (Direction::Up, Ok(length)) = (direction, &read) {
            let calls = buffer[..*length].windows(7).filter(|it| it == b"EVALSHA");
            scripts.fetch_add(calls.count() as u64, Ordering::SeqCst);
        }
        silent |= now.swallows(direction);
        match read {
            // The other side receives no end.
            Ok(0) | Err(_) if silent => std::future::pending().await,
            Ok(0) => return Ok(()),
            Err(_) => return Err(()),
            Ok(_) if silent => {}
            Ok(length) => {
                let passes = |now: &Rules| !now.frozen || now.freezes == born.freezes;
                drop(rules.wait_for(passes).await.map_err(drop)?);
                if !now.delay.is_zero() {
                    sleep(now.delay).await;
                }
                if truncations != now.truncations {
                    (truncations, passed) = (now.truncations, 0);
                }
                let left = match now.truncation {
                    Some((ends, bytes)) if ends == direction && truncations > born.truncations => {
                        bytes - passed
                    }
                    _ => usize::MAX,
                };
                let length = length.min(left);
                match now.drops_messages && direction == Direction::Down {
                    true => to.write_all(&without_messages(&buffer[..length])).await,
                    false => to.write_all(&buffer[..length]).await,
                }
                .map_err(drop)?;
                passed += length;
                // Written bytes arrive: on one machine, a reset does not overtake bytes that the kernel has
                // accepted.
                if length == left {
                    return Err(());
                }
            }
        }
    }
}

fn without_messages(mut replies: &[u8]) -> Vec<u8> {
    // The type of the reply precedes it.
    const MESSAGE: &[u8] = b"3\r\n$7\r\nmessage\r\n";
    let mut rest = Vec::new();
    let next = |replies: &[u8]| replies.windows(MESSAGE.len()).position(|it| it == MESSAGE);
    while let Some(start) = next(replies) {
        let after = &replies[start + MESSAGE.len()..];
        // A channel and a payload.
        let Some(end) = after_text(after).and_then(after_text) else {
            break;
        };
        rest.extend_from_slice(&replies[..start - 1]);
        replies = end;
    }
    rest.extend_from_slice(replies);
    rest
}

/// Returns what follows a text in a reply, or `None` if the text is incomplete.
fn after_text(reply: &[u8]) -> Option<&[u8]> {
    let head = reply.windows(2).position(|it| it == b"\r\n")?;
    let length: usize = std::str::from_utf8(reply.get(1..head)?)
        .ok()?
        .parse()
        .ok()?;
    reply.get(head + 2 + length + 2..)
}
