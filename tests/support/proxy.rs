//! A wire between client and server that can be held up.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Passes connections on to a server. Ends with its connections when dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    /// One switch per connection: true lets its bytes pass.
    switches: Arc<Mutex<Vec<watch::Sender<bool>>>>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let switches: Arc<Mutex<Vec<watch::Sender<bool>>>> = Arc::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, server_port, Arc::clone(&switches)));
        Self {
            address,
            switches,
            _tasks: tasks,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Holds up all connections there are. New ones pass.
    pub(crate) fn freeze(&self) {
        self.switch(false);
    }

    pub(crate) fn thaw(&self) {
        self.switch(true);
    }

    fn switch(&self, open: bool) {
        let switches = self.switches.lock();
        for switch in &*switches.unwrap_or_else(PoisonError::into_inner) {
            switch.send_modify(|passes| *passes = open);
        }
    }
}

async fn accept(
    listener: TcpListener,
    server_port: u16,
    switches: Arc<Mutex<Vec<watch::Sender<bool>>>>,
) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (switch, open) = watch::channel(true);
        let mut all = switches.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(switch);
        drop(all);
        connections.spawn(connect(client, server_port, open));
    }
}

async fn connect(client: TcpStream, server_port: u16, open: watch::Receiver<bool>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Whichever side hangs up first takes the other along.
    tokio::select! {
        () = pump(from_client, to_server, open.clone()) => {}
        () = pump(from_server, to_client, open) => {}
    }
}

async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut open: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let passed = open.wait_for(|open| *open).await.is_ok();
        if !passed || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
