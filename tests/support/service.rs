//! Servers behind one virtual address, and their failover.

use tokio::net::TcpListener;

use super::cluster::add_all_slots;
use super::patience::until;
use super::redis_server::{RedisServer, node_port};
use super::vip::Vip;

/// Three servers, of which the first starts as the primary, behind one address.
pub(crate) struct Service {
    pub(crate) servers: Vec<RedisServer>,
    pub(crate) vip: Vip,
    is_cluster: bool,
}

impl Service {
    pub(crate) async fn start() -> Self {
        let options = ["--repl-diskless-sync-delay", "0"];
        let servers: Vec<_> = (0..3).map(|_| RedisServer::start_with(&options)).collect();
        let vip = Vip::start(servers[0].port()).await;
        let service = Self {
            servers,
            vip,
            is_cluster: false,
        };
        service.replicate(0, &[1, 2]);
        service.acknowledge_writes().await;
        service
    }

    /// Starts a cluster of one shard, whose nodes announce the virtual address.
    pub(crate) async fn start_shard() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let announced = listener
            .local_addr()
            .expect("its number")
            .port()
            .to_string();
        let basis = [
            ["--cluster-enabled", "yes"],
            ["--cluster-node-timeout", "1000"],
            ["--cluster-announce-ip", "127.0.0.1"],
            ["--cluster-announce-port", &announced],
            ["--cluster-replica-validity-factor", "0"],
            ["--repl-diskless-sync-delay", "0"],
        ];
        let options = [basis.as_flattened(), node_port()].concat();
        let servers: Vec<_> = (1..=3)
            .map(|epoch| {
                let node = RedisServer::start_with(&options);
                node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()]);
                node
            })
            .collect();
        // The replicas connect to the announced address as well.
        let vip = Vip::on(listener, servers[0].port());
        add_all_slots(&servers[0]);
        for node in &servers[1..] {
            let (port, node_port) = (node.port().to_string(), node.node_port());
            servers[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &port, &node_port]);
        }
        let service = Self {
            servers,
            vip,
            is_cluster: true,
        };
        let has_met = |node: &RedisServer| {
            node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                && node.cli(&["CLUSTER", "NODES"]).lines().count() == 3
        };
        let logs = || service.servers[0].log();
        until("met", logs, || service.servers.iter().all(has_met)).await;
        let id = service.servers[0].cli(&["CLUSTER", "MYID"]);
        for node in &service.servers[1..] {
            node.cli(&["CLUSTER", "REPLICATE", &id]);
        }
        // A cluster lists a replica once it has received writes. Clients then know it before a failover.
        service.acknowledge_writes().await;
        let listed = || service.servers[0].cli(&["CLUSTER", "SLOTS"]);
        let are_listed = |id: &String| listed().contains(id.trim());
        let ids = service
            .servers
            .iter()
            .map(|it| it.cli(&["CLUSTER", "MYID"]));
        let ids: Vec<_> = ids.collect();
        until("listed", listed, || ids.iter().all(are_listed)).await;
        service
    }

    fn replicate(&self, primary: usize, replicas: &[usize]) {
        let port = self.servers[primary].port().to_string();
        for replica in replicas {
            self.servers[*replica].cli(&["REPLICAOF", "127.0.0.1", &port]);
        }
    }

    async fn follow(&self, primary: usize, replicas: &[usize]) {
        let logs = || self.servers[primary].log();
        let is_connected = |it: &usize| self.servers[*it].cli(&["ROLE"]).contains("\nconnected");
        let are_all = || replicas.iter().all(is_connected);
        until("replicas in sync", logs, are_all).await;
    }

    /// Writes to the first server, and waits until the others have acknowledged it. A replica is in sync up to a second
    /// before its primary sends it writes.
    async fn acknowledge_writes(&self) {
        self.follow(0, &[1, 2]).await;
        let primary = &self.servers[0];
        primary.cli(&["SET", "written", "1"]);
        primary.cli(&["DEL", "written"]);
        let info = || primary.cli(&["INFO", "replication"]);
        let have_acknowledged = || {
            let info = info();
            let mut lines = info.lines().map(str::trim);
            let written = lines.find_map(|it| it.strip_prefix("master_repl_offset:"));
            let acknowledged = format!(",offset={},", written.expect("the offset"));
            info.matches(&acknowledged).count() == 2
        };
        until("acknowledged", info, have_acknowledged).await;
    }

    /// Makes the second server the primary, and the first one its replica, without a loss of writes. The endpoint
    /// still leads to the first one, except in a cluster, whose replicas follow it as well.
    pub(crate) async fn promote(&self) {
        self.pause().await;
        if self.is_cluster {
            self.lead_to_new();
        }
        self.demote().await;
        self.follow_new().await;
    }

    /// As [`promote`](Self::promote), except that the endpoint of a cluster still leads to the first server as well.
    /// Its replicas follow later: [`follow_new`](Self::follow_new).
    pub(crate) async fn promote_unnoticed(&self) {
        self.pause().await;
        self.demote().await;
    }

    async fn demote(&self) {
        if self.is_cluster {
            self.take_over().await;
        } else {
            self.servers[1].cli(&["REPLICAOF", "NO", "ONE"]);
            self.replicate(1, &[0, 2]);
        }
        let logs = || self.servers[0].log();
        let role = || self.servers[0].cli(&["ROLE"]);
        until("demoted", logs, || role().starts_with("slave")).await;
        self.servers[0].cli(&["CLIENT", "UNPAUSE"]);
    }

    /// Waits until the other servers follow the second one.
    pub(crate) async fn follow_new(&self) {
        self.follow(1, &[0, 2]).await;
    }

    /// As [`promote`](Self::promote), without the first server, which hangs.
    pub(crate) async fn promote_without_former(&self) {
        self.pause().await;
        self.servers[0].stop_process();
        if self.is_cluster {
            self.lead_to_new();
            self.take_over().await;
        } else {
            self.servers[1].cli(&["REPLICAOF", "NO", "ONE"]);
            self.replicate(1, &[2]);
        }
        self.follow(1, &[2]).await;
    }

    async fn take_over(&self) {
        self.servers[1].cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        let logs = || self.servers[1].log();
        let role = || self.servers[1].cli(&["ROLE"]);
        until("taken over", logs, || role().starts_with("master")).await;
    }

    async fn pause(&self) {
        pause_writes(&self.servers.iter().collect::<Vec<_>>()).await;
    }

    pub(crate) fn lead_to_new(&self) {
        self.vip.lead_to(self.servers[1].port());
    }

    pub(crate) fn url(&self) -> String {
        let scheme = match self.is_cluster {
            true => "redis+cluster",
            false => "redis",
        };
        format!("{scheme}://{}", self.vip.address())
    }

    /// Returns the server that is the primary.
    pub(crate) fn primary(&self) -> &RedisServer {
        let is_primary = |it: &&RedisServer| it.runs() && it.cli(&["ROLE"]).starts_with("master");
        self.servers.iter().find(is_primary).expect("a primary")
    }
}

/// Pauses the writes of the first server, and waits until the others, its replicas, have all of them.
pub(crate) async fn pause_writes(servers: &[&RedisServer]) {
    servers[0].cli(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    let offset = |it: &RedisServer| {
        let info = it.cli(&["INFO", "replication"]);
        let line = |line: &&str| line.starts_with("master_repl_offset:");
        info.lines()
            .find(line)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let logs = || servers[0].log();
    let are_equal = || {
        let offsets: Vec<_> = servers.iter().map(|it| offset(it)).collect();
        offsets.iter().all(|it| *it == offsets[0])
    };
    until("replicated", logs, are_equal).await;
}
