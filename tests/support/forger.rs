//! A proxy in front of a server that replies to some commands itself.
//!
//! It has the role of a primary, in RESP3, and confirms subscriptions without messages.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Client, Cmd, Value};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::endpoint::{command, encode};
use super::process::version;
use super::vip::most_within;

/// Returns the reply to a command, or `None` to forward it.
type Forge = Box<dyn Fn(&[&str]) -> Option<String> + Send>;

/// It ends when dropped.
pub(crate) struct Forger {
    port: u16,
    shared: Arc<Shared>,
    acceptor: JoinHandle<()>,
}

struct Shared {
    server: u16,
    forge: Mutex<Option<Forge>>,
    accepted: Mutex<Vec<Instant>>,
    /// The names of the commands, and the numbers of their connections.
    commands: Mutex<Vec<(usize, String)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Forger {
    pub(crate) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its number").port();
        let shared = Arc::new(Shared {
            server,
            forge: Mutex::default(),
            accepted: Mutex::default(),
            commands: Mutex::default(),
        });
        let of_all = Arc::clone(&shared);
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let mut accepted = lock(&of_all.accepted);
                accepted.push(Instant::now());
                let (number, shared) = (accepted.len(), Arc::clone(&of_all));
                drop(tokio::spawn(
                    async move { shared.serve(client, number).await },
                ));
            }
        });
        Self {
            port,
            shared,
            acceptor,
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Replies to commands from now on, instead of the former function.
    pub(crate) fn forge(&self, forge: impl Fn(&[&str]) -> Option<String> + Send + 'static) {
        *lock(&self.shared.forge) = Some(Box::new(forge));
    }

    /// Returns the reply to `CLUSTER SLOTS` of a node that serves all slots.
    pub(crate) fn slots(&self) -> String {
        let node = format!("*2\r\n$9\r\n127.0.0.1\r\n:{}\r\n", self.port);
        format!("*1\r\n*3\r\n:0\r\n:16383\r\n{node}")
    }

    /// Returns the number of the connection with the last command of this name.
    pub(crate) fn last(&self, name: &str) -> usize {
        let commands = lock(&self.shared.commands);
        let last = commands.iter().rfind(|(_, it)| it == name);
        last.expect("a command").0
    }

    /// Returns the most connections that clients opened within `window` since `start`.
    pub(crate) fn most_accepted(&self, start: Instant, window: Duration) -> usize {
        most_within(&lock(&self.shared.accepted), start, window)
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl Shared {
    async fn serve(&self, client: TcpStream, number: usize) -> io::Result<()> {
        client.set_nodelay(true)?;
        let url = format!("redis://127.0.0.1:{}/?protocol=resp2", self.server);
        let server = Client::open(url).expect("a URL");
        let server = server.get_multiplexed_async_connection().await;
        let mut server = server.map_err(io::Error::other)?;
        let (client, mut replies) = client.into_split();
        let mut client = BufReader::new(client);
        while let Some(words) = command(&mut client).await? {
            let words: Vec<_> = words.iter().map(|it| String::from_utf8_lossy(it)).collect();
            let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
            lock(&self.commands).push((number, words[0].to_owned()));
            let forged = lock(&self.forge).as_ref().and_then(|it| it(&words));
            let encoded = match forged.or_else(|| of_own(&words)) {
                Some(forged) => forged.into_bytes(),
                None => {
                    let mut command = Cmd::new();
                    command.arg(&words);
                    let reply = server.send_packed_command(&command).await;
                    let mut encoded = Vec::new();
                    encode(&reply.unwrap_or(Value::Nil), &mut encoded);
                    encoded
                }
            };
            replies.write_all(&encoded).await?;
        }
        Ok(())
    }
}

fn of_own(words: &[&str]) -> Option<String> {
    match words[0] {
        "HELLO" => Some(format!(
            "%2\r\n+version\r\n+{}.0.0\r\n+role\r\n+master\r\n",
            version()
        )),
        "SUBSCRIBE" | "SSUBSCRIBE" | "UNSUBSCRIBE" | "SUNSUBSCRIBE" => {
            let (name, channel) = (words[0].to_lowercase(), words[1]);
            Some(format!(
                ">3\r\n+{name}\r\n${}\r\n{channel}\r\n:1\r\n",
                channel.len()
            ))
        }
        _ => None,
    }
}
