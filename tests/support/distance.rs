//! A server at a distance: a network with a round trip time and without a limit on what is in flight.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Forwards connections to a port of this machine. It ends when dropped.
pub(crate) struct Distance {
    port: u16,
    acceptor: JoinHandle<()>,
}

impl Distance {
    /// Each byte arrives half a round trip after it was sent. The first bytes of a client also wait for the round trip
    /// in which TCP connects, since the connection to this process is immediate.
    pub(crate) async fn start(target: u16, round_trip: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its number").port();
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                drop(tokio::spawn(connection(client, target, round_trip)));
            }
        });
        Self { port, acceptor }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Distance {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn connection(client: TcpStream, target: u16, round_trip: Duration) -> io::Result<()> {
    let connected = Instant::now() + round_trip;
    let server = TcpStream::connect(("127.0.0.1", target)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let delay = round_trip / 2;
    // The end of one direction ends the other one.
    tokio::select! {
        ended = carry(from_client, to_server, connected, delay) => ended,
        ended = carry(from_server, to_client, connected, delay) => ended,
    }
}

/// Copies until the end of the stream. Bytes are sent at `earliest` or later.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    earliest: Instant,
    delay: Duration,
) -> io::Result<()> {
    let (sender, mut in_flight) = unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let length = from.read(&mut buffer).await?;
            let arrival = Instant::now().max(earliest) + delay;
            let piece = buffer[..length].to_vec();
            if length == 0 || sender.send((arrival, piece)).is_err() {
                return Ok(());
            }
        }
    };
    let write = async {
        while let Some((arrival, piece)) = in_flight.recv().await {
            sleep_until(arrival).await;
            to.write_all(&piece).await?;
        }
        Ok(())
    };
    tokio::try_join!(read, write).map(drop)
}
