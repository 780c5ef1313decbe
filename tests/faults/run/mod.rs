//! One run: servers, the processes that lock there, and their load.

mod duplicate_release;
mod end;
mod holders;
mod outage;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::{Manager, Pool};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{LockManager, LockManagerBuilder, Quorum, RedisBackend};

use crate::load::{Load, hot};
use crate::referee::Referee;
use crate::rows::{ROUNDING, Row};
use crate::store::{Store, Topology};
use crate::support::engine::{MS, Monitor, eventually};
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;
use holders::Expectation;
pub(crate) use outage::Begun;

/// The number of processes that share the locks.
pub(crate) const PROCESSES: usize = 3;
/// The time for the recovery from a fault.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time for which the load continues after the recovery.
const AFTERMATH: Duration = Duration::from_millis(400);

/// The connections of one process to the server.
pub(crate) struct Gate {
    pub(crate) commands: Proxy,
    pub(crate) messages: Proxy,
}

pub(crate) struct Run {
    pub(crate) row: &'static Row,
    pub(crate) store: Store,
    pub(crate) gates: Vec<Gate>,
    /// The connections of all processes to the sentinels.
    pub(crate) sentinels: Vec<Proxy>,
    pub(crate) managers: Vec<LockManager>,
    pub(crate) referee: Arc<Referee>,
    load: Load,
    monitors: Vec<Monitor>,
    evidence: Vec<String>,
    expectations: Vec<Expectation>,
    /// `true` if connections have lost bytes without notice to either side.
    pub(crate) has_silent_connections: bool,
}

impl Run {
    pub(crate) async fn start(row: &'static Row) -> Self {
        let mut run = Self {
            row,
            store: Store::start(row.topology).await,
            gates: Vec::new(),
            sentinels: Vec::new(),
            managers: Vec::new(),
            referee: Referee::start(),
            load: Load::new(row.topology != Topology::Quorum, !row.keep.is_zero()),
            monitors: Vec::new(),
            evidence: Vec::new(),
            expectations: Vec::new(),
            has_silent_connections: false,
        };
        if row.topology != Topology::Own {
            run.watch_the_wire();
            if let Some((rules, _)) = row.login {
                run.cli(rules);
            }
            if row.quarantine {
                run.sit_out_the_first_quarantine().await;
            }
            if let Store::Sentinel(set) = &run.store {
                for port in set.sentinel_ports() {
                    run.sentinels.push(Proxy::start(port).await);
                }
            }
            for process in 0..PROCESSES {
                run.add_process(process).await;
            }
            let start = run.referee.start.0;
            run.granted(&hot(), start).await;
            run.granted(&run.load.mixed(), start).await;
            let all_kept = || (0..PROCESSES).all(|process| run.keeps(process));
            eventually("all hold what they hold for good", all_kept).await;
            sleep(AFTERMATH).await;
        }
        run
    }

    /// Returns a builder of a backend for this row.
    fn backend(&self, url: String) -> RedisBackendBuilder {
        self.settings(RedisBackend::builder(url))
    }

    fn settings(&self, mut builder: RedisBackendBuilder) -> RedisBackendBuilder {
        if let Some(replicas) = self.row.min_replicas {
            builder = builder.min_replicas(replicas, 450 * MS);
        }
        if self.row.quarantine {
            builder = builder.quarantine(self.row.lease);
        }
        builder
    }

    /// Servers that never had data are indistinguishable from servers that lost it.
    async fn sit_out_the_first_quarantine(&self) {
        let urls = match &self.store {
            Store::Single(server) => vec![server.url()],
            Store::Quorum(servers) => servers.iter().map(RedisServer::url).collect(),
            _ => panic!("no row has a quarantine there"),
        };
        for url in urls {
            let backend = self.backend(url).connect().await;
            drop(backend.expect("the server is there"));
        }
        sleep(self.row.lease + ROUNDING).await;
    }

    async fn add_process(&mut self, process: usize) {
        if let Some(locks) = self.connect().await {
            self.load
                .add(&self.referee, &locks, process, self.row.lease);
        }
    }

    /// Adds a process without load, behind proxies of its own. Returns its number.
    pub(crate) async fn add_idle_process(&mut self) -> usize {
        let locks = self.connect().await;
        assert!(locks.is_some(), "the row brings its own servers");
        self.managers.len() - 1
    }

    async fn connect(&mut self) -> Option<LockManager> {
        let builder = match &self.store {
            Store::Single(server) => {
                let gate = Gate {
                    commands: Proxy::start(server.port()).await,
                    messages: Proxy::start(server.port()).await,
                };
                let login = |url: String| match self.row.login {
                    Some((_, login)) => url.replace("://", &format!("://{login}@")),
                    None => url,
                };
                let builder = self.backend(login(gate.commands.url()));
                let builder = builder.notify(login(gate.messages.url()));
                self.gates.push(gate);
                builder
            }
            Store::Sentinel(set) => {
                let addresses = self.sentinels.iter();
                let addresses = addresses.map(|it| format!("127.0.0.1:{}", it.port()));
                let addresses = addresses.collect::<Vec<_>>().join(",");
                let service = set.service();
                self.backend(format!("redis+sentinel://{addresses}/{service}"))
            }
            Store::Cluster(cluster) => self.backend(cluster.url()),
            Store::Service(service) if self.row.is_pooled => {
                let manager = Manager::new(service.url()).expect("a URL");
                let pool = Pool::builder(manager).max_size(100).build();
                let builder = RedisBackend::from_pool(pool.expect("a pool"));
                self.settings(builder).notify(service.url())
            }
            Store::Service(service) => self.backend(service.url()),
            Store::Quorum(servers) => {
                let mut quorum = Quorum::builder();
                for server in servers {
                    let node = self.backend(server.url()).connect().await;
                    quorum = quorum.node(node.expect("the server is there"));
                }
                let quorum = quorum.build().expect("valid settings");
                self.referee.shows(format!("{quorum:?}"));
                return Some(self.manage(LockManager::builder(quorum)));
            }
            Store::Own => return None,
        };
        self.referee.shows(format!("{builder:?}"));
        let backend = builder.connect().await.expect("the servers are there");
        self.referee.shows(format!("{backend:?}"));
        Some(self.manage(LockManager::builder(backend)))
    }

    fn manage(&mut self, builder: LockManagerBuilder) -> LockManager {
        let locks = builder
            .watchdog_timeout(self.row.lease)
            .keep_released(self.row.keep)
            .build()
            .expect("valid settings");
        self.referee.shows(format!("{locks:?}"));
        self.managers.push(locks.clone());
        locks
    }

    /// Waits until a process keeps a lease, if this row keeps leases.
    pub(crate) async fn keeps_leases(&self) {
        let kept =
            || self.row.keep.is_zero() || self.managers.iter().any(|it| it.snapshot().kept > 0);
        eventually("a lease is kept", kept).await;
    }

    /// Returns the single server of this row.
    pub(crate) fn server(&mut self) -> &mut RedisServer {
        match &mut self.store {
            Store::Single(server) => server,
            _ => panic!("not a row on a single server"),
        }
    }

    pub(crate) fn port(&mut self) -> u16 {
        self.server().port()
    }

    pub(crate) fn is_silent(&mut self) -> bool {
        !Self::answers(self.port(), 100 * MS)
    }

    pub(crate) fn cli(&mut self, command: &str) -> String {
        let args: Vec<_> = command.split(' ').collect();
        self.server().cli(&args)
    }

    /// Records from now on the commands that each running server receives.
    pub(crate) fn watch_the_wire(&mut self) {
        for server in self.store.all_servers() {
            let of_server = |it: &Monitor| it.port() == server.port() && !it.is_over();
            if server.runs() && !self.monitors.iter().any(of_server) {
                self.monitors.push(Monitor::start(server));
            }
        }
    }

    /// Declares that exactly one server considers itself the primary from now on.
    pub(crate) fn is_whole(&mut self) {
        self.referee.is_whole();
        self.watch_the_wire();
    }

    /// Returns `true` if a server, or the server behind a proxy, replies in time.
    pub(crate) fn answers(port: u16, within: Duration) -> bool {
        let ping = || {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_read_timeout(Some(within))?;
            stream.write_all(b"PING\r\n")?;
            stream.read(&mut [0; 64])
        };
        ping().is_ok_and(|length| length > 0)
    }

    /// Requires that the fault happened, without which the row proves nothing.
    pub(crate) fn proof(&mut self, happened: bool, what: impl Into<String>) {
        let what = what.into();
        self.referee.expect(happened, "vacuous", || what.clone());
        self.evidence.push(what);
    }

    /// Adds an observation to the report.
    pub(crate) fn evidence(&mut self, what: String) {
        self.evidence.push(what);
    }

    /// One process acquires a lock and holds it for a time, or until it is lost. Returns the key.
    pub(crate) async fn holder(
        &self,
        process: usize,
        key: &str,
        time: Duration,
    ) -> JoinHandle<bool> {
        let asked = self.referee.asks();
        let guard = self.managers[process].acquire(key).await;
        let guard = guard.expect("it is free");
        let terms = (self.row.lease, true);
        let checked = self.referee.granted(guard, process, asked, terms);
        tokio::spawn(async move { checked.keep(time).await })
    }

    /// Waits until each of the keys was granted after this moment.
    async fn granted(&self, keys: &[String], after: Instant) {
        let limit = Instant::now() + PATIENCE;
        while !keys
            .iter()
            .all(|key| self.referee.next_grant(key, after).is_some())
        {
            if Instant::now() > limit {
                return;
            }
            sleep(5 * MS).await;
        }
    }
}
