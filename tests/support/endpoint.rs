//! One endpoint in front of all primaries of a Cluster, as a proxy or a managed service provides it.
//!
//! It speaks RESP2 only and has no subscriptions. It sends each command to the primary of its slot, and
//! replies `CROSSSLOT` to a script over several slots. Clients receive no node addresses.
//!
//! A spreading one sends each command to the server of its first key instead, without a check.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crc::{CRC_16_XMODEM, Crc};
use futures_util::StreamExt as _;
use futures_util::future::try_join;
use futures_util::stream::FuturesOrdered;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Value};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinHandle;

use super::cluster::Cluster;
use super::redis_server::RedisServer;

const SLOTS: usize = 16_384;
/// The checksum of slots, as in the cluster specification.
static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The endpoint, which ends when dropped.
pub(crate) struct Endpoint {
    port: u16,
    shared: Arc<Shared>,
    acceptor: JoinHandle<()>,
}

struct Shared {
    /// The primaries, in the order of their slots.
    ports: Vec<u16>,
    /// `true` if scripts over several slots are rejected.
    checks: bool,
    /// `true` if the first server gets all commands.
    gathers: AtomicBool,
    /// `true` if all scripts are rejected.
    loads: AtomicBool,
    cut: Notify,
    /// `true` if every new connection is closed at once.
    closed: AtomicBool,
    rejected: AtomicU64,
    scripts: AtomicU64,
}

impl Endpoint {
    pub(crate) async fn start(cluster: &Cluster) -> Self {
        let primaries = &cluster.nodes()[..3];
        Self::start_before(primaries, true).await
    }

    /// Starts a spreading endpoint in front of independent servers.
    pub(crate) async fn start_spreading(servers: &[RedisServer]) -> Self {
        Self::start_before(servers, false).await
    }

    async fn start_before(servers: &[RedisServer], checks: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its number").port();
        let shared = Arc::new(Shared {
            ports: servers.iter().map(RedisServer::port).collect(),
            checks,
            gathers: AtomicBool::new(false),
            loads: AtomicBool::new(false),
            cut: Notify::new(),
            closed: AtomicBool::new(false),
            rejected: AtomicU64::new(0),
            scripts: AtomicU64::new(0),
        });
        let of_all = Arc::clone(&shared);
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !of_all.closed.load(Ordering::SeqCst) {
                    let shared = Arc::clone(&of_all);
                    drop(tokio::spawn(async move {
                        tokio::select! {
                            served = shared.serve(client) => drop(served),
                            () = shared.cut.notified() => {}
                        }
                    }));
                }
            }
        });
        Self {
            port,
            shared,
            acceptor,
        }
    }

    /// Returns the URL. Clients must request RESP2.
    pub(crate) fn url(&self) -> String {
        format!("{}?protocol=2", self.url_of_resp3())
    }

    pub(crate) fn url_of_resp3(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets whether new connections are closed at once.
    pub(crate) fn close(&self, closed: bool) {
        self.shared.closed.store(closed, Ordering::SeqCst);
    }

    /// Sets whether the first server gets all commands.
    pub(crate) fn gather(&self, gathers: bool) {
        self.shared.gathers.store(gathers, Ordering::SeqCst);
    }

    /// Sets whether the servers load their data.
    pub(crate) fn load(&self, loads: bool) {
        self.shared.loads.store(loads, Ordering::SeqCst);
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        self.shared.cut.notify_waiters();
    }

    /// Returns the number of scripts that spanned several slots.
    pub(crate) fn rejected(&self) -> u64 {
        self.shared.rejected.load(Ordering::SeqCst)
    }

    /// Returns the number of script calls, rejected ones included.
    pub(crate) fn scripts(&self) -> u64 {
        self.shared.scripts.load(Ordering::SeqCst)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl Shared {
    /// Serves a client until it closes its connection. A command does not wait for the replies to earlier ones, and the
    /// replies are in the order of the commands.
    async fn serve(&self, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut primaries = Vec::new();
        for port in &self.ports {
            let client = Client::open(format!("redis://127.0.0.1:{port}/?protocol=resp2"));
            let client = client.expect("a URL");
            let connection = client.get_multiplexed_async_connection();
            primaries.push(connection.await.map_err(io::Error::other)?);
        }
        let (client, mut answers) = client.into_split();
        let (commands, mut received) = unbounded_channel();
        let read = async move {
            let mut client = BufReader::new(client);
            while let Some(words) = command(&mut client).await? {
                let _writer_ended = commands.send(words);
            }
            Ok(())
        };
        let write = async {
            let mut replies = FuturesOrdered::new();
            loop {
                let reply = tokio::select! {
                    Some(words) = received.recv() => {
                        replies.push_back(self.reply(primaries.clone(), words));
                        continue;
                    }
                    Some(reply) = replies.next() => reply?,
                    else => return Ok(()),
                };
                let mut encoded = Vec::new();
                encode(&reply, &mut encoded);
                answers.write_all(&encoded).await?;
            }
        };
        try_join(read, write).await.map(drop)
    }

    async fn reply(
        &self,
        mut primaries: Vec<MultiplexedConnection>,
        words: Vec<Vec<u8>>,
    ) -> io::Result<Value> {
        let name = String::from_utf8_lossy(&words[0]).to_ascii_uppercase();
        let keys = match name.as_str() {
            "EVAL" | "EVALSHA" if self.loads.load(Ordering::SeqCst) => {
                return Ok(error("LOADING Redis is loading the dataset in memory"));
            }
            "EVAL" | "EVALSHA" => {
                self.scripts.fetch_add(1, Ordering::SeqCst);
                let count: usize = text(&words[2]).parse().expect("a number of keys");
                &words[3..3 + count]
            }
            "PTTL" | "SET" | "DEL" => &words[1..2],
            "PUBLISH" | "PING" | "CONFIG" | "INFO" => &[],
            _ => return Ok(error(&format!("ERR unknown command '{name}'"))),
        };
        let mut slots: Vec<_> = keys.iter().map(|key| slot_of(key)).collect();
        slots.dedup();
        if self.checks && slots.len() > 1 {
            self.rejected.fetch_add(1, Ordering::SeqCst);
            let said = "CROSSSLOT Keys in request don't hash to the same slot";
            return Ok(error(said));
        }
        let count = primaries.len();
        let first = |primary: &usize| primary * SLOTS / count;
        let slot = match self.gathers.load(Ordering::SeqCst) {
            true => 0,
            false => slots.first().copied().unwrap_or(0),
        };
        let primary = (0..count).rfind(|primary| first(primary) <= slot);
        let mut command = Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        let primary = &mut primaries[primary.expect("slot 0 is the first")];
        let reply = primary.send_packed_command(&command).await;
        reply.map_err(io::Error::other)
    }
}

/// Returns the slot of a key: that of its hash tag, if it has one.
fn slot_of(key: &[u8]) -> usize {
    let key = text(key);
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let tag = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty());
    usize::from(CRC.checksum(tag.unwrap_or(key).as_bytes())) % SLOTS
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn error(said: &str) -> Value {
    redis::parse_redis_value(format!("-{said}\r\n").as_bytes()).expect("an error")
}

/// Returns the arguments of the next command, or `None` at the end.
pub(super) async fn command(
    client: &mut BufReader<OwnedReadHalf>,
) -> io::Result<Option<Vec<Vec<u8>>>> {
    let mut line = String::new();
    let mut number = async |client: &mut BufReader<OwnedReadHalf>| {
        line.clear();
        client.read_line(&mut line).await?;
        let digits = line.get(1..).unwrap_or_default().trim_end();
        Ok::<_, io::Error>(digits.parse::<usize>().ok())
    };
    let Some(count) = number(client).await? else {
        return Ok(None);
    };
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(client).await?.expect("a length");
        let mut word = vec![0; length + 2];
        client.read_exact(&mut word).await?;
        word.truncate(length);
        words.push(word);
    }
    Ok(Some(words))
}

pub(super) fn encode(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Nil => out.extend(b"$-1\r\n"),
        Value::Int(number) => out.extend(format!(":{number}\r\n").bytes()),
        Value::BulkString(bytes) => {
            out.extend(format!("${}\r\n", bytes.len()).bytes());
            out.extend(bytes);
            out.extend(b"\r\n");
        }
        Value::SimpleString(text) => out.extend(format!("+{text}\r\n").bytes()),
        Value::Okay => out.extend(b"+OK\r\n"),
        Value::Array(values) => {
            out.extend(format!("*{}\r\n", values.len()).bytes());
            values.iter().for_each(|value| encode(value, out));
        }
        Value::ServerError(error) => {
            let details = error.details().unwrap_or_default();
            out.extend(format!("-{} {details}\r\n", error.code()).bytes());
        }
        other => panic!("not a reply in RESP2: {other:?}"),
    }
}
