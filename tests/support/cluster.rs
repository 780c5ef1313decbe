//! A Cluster of three primaries with one replica each.

mod migration;
mod view;

use std::ops::Range;
use std::time::Duration;

use tokio::time::sleep;

use super::patience::{until, wait_until};
use super::process::{free_port, version};
use super::redis_server::{RedisServer, node_port};
use super::service::pause_writes;

use view::View;

const PRIMARIES: usize = 3;
const NODES: usize = 2 * PRIMARIES;
const SLOTS: usize = 16_384;

/// Six servers. Nodes 0, 1 and 2 start as primaries, and 3, 4 and 5 as their replicas in this order. A
/// primary that does not reply is replaced within two to four seconds.
pub(crate) struct Cluster {
    nodes: Vec<RedisServer>,
    /// The node that has left, and belongs to another cluster.
    gone: Option<usize>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts all nodes with more options. Returns when the Cluster is ready: each node has found all
    /// others, all slots are served, and the replicas are in sync.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        let basis = [
            ["--cluster-enabled", "yes"],
            ["--cluster-node-timeout", "1000"],
            // A replica may take over regardless of how long it was disconnected.
            ["--cluster-replica-validity-factor", "0"],
            ["--cluster-allow-replica-migration", "no"],
            // By default, a primary waits five seconds for more replicas before it sends its data.
            ["--repl-diskless-sync-delay", "0"],
        ];
        let options = [basis.as_flattened(), node_port(), options].concat();
        let nodes = (0..NODES).map(|_| RedisServer::start_with(&options));
        let cluster = Self {
            nodes: nodes.collect(),
            gone: None,
        };
        cluster.join();
        cluster
    }

    fn join(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            // Two nodes with the same epoch would have to resolve the conflict first.
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        }
        for (index, node) in self.nodes[..PRIMARIES].iter().enumerate() {
            let start = index * SLOTS / PRIMARIES;
            let end = (index + 1) * SLOTS / PRIMARIES;
            add_slots(node, start..end);
        }
        for node in &self.nodes[1..] {
            let (port, node_port) = (node.port().to_string(), node.node_port());
            self.cli(0, &["CLUSTER", "MEET", "127.0.0.1", &port, &node_port]);
        }
        wait_until(
            "nodes that have found each other",
            || self.logs(),
            || self.whole(),
        );
        for index in PRIMARIES..NODES {
            let primary = self.id(index - PRIMARIES);
            self.cli(index, &["CLUSTER", "REPLICATE", &primary]);
        }
        wait_until("a ready Cluster", || self.logs(), || self.in_order());
    }

    /// Returns the URL of the nodes that started as primaries: `redis+cluster://h1:p1,h2:p2,h3:p3`.
    pub(crate) fn url(&self) -> String {
        let addresses = self.nodes[..PRIMARIES].iter().map(RedisServer::address);
        let addresses = addresses.collect::<Vec<_>>().join(",");
        format!("redis+cluster://{addresses}")
    }

    pub(crate) fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    pub(crate) fn node(&self, node: usize) -> &RedisServer {
        &self.nodes[node]
    }

    /// Runs a command on a node as its administrator.
    pub(crate) fn cli(&self, node: usize, args: &[&str]) -> String {
        self.nodes[node].cli(args)
    }

    /// Returns the slot of a Redis key.
    pub(crate) fn slot(&self, key: &str) -> u16 {
        let (_, server) = self.running().next().expect("a node that runs");
        let slot = server.cli(&["CLUSTER", "KEYSLOT", key]);
        slot.parse().expect("a number")
    }

    /// Returns the node that serves the slot of a Redis key.
    pub(crate) fn node_of(&self, key: &str) -> usize {
        self.node_of_slot(self.slot(key))
    }

    /// Returns the running node that claims the slot. Just after a failover, several nodes claim it, and
    /// the last elected one counts.
    pub(crate) fn node_of_slot(&self, slot: u16) -> usize {
        let views = self.views();
        let claims = views.iter().filter(|(_, view)| view.myself().serves(slot));
        let last = claims.max_by_key(|(_, view)| view.myself().epoch);
        last.expect("a node that serves the slot").0
    }

    /// Returns the running nodes that claim slots as primaries.
    pub(crate) fn primaries(&self) -> Vec<usize> {
        let views = self.views();
        let primaries = views.iter().filter(|(_, view)| view.myself().serves_any());
        primaries.map(|(node, _)| *node).collect()
    }

    /// Returns the replica of a primary, as the primary reports it.
    pub(crate) fn replica_of(&self, primary: usize) -> usize {
        let id = self.id(primary);
        let view = View::of(&self.nodes[primary]);
        let replica = view.nodes.iter().find(|it| it.primary == id);
        let port = replica.expect("a replica").port;
        let position = self.nodes.iter().position(|node| node.port() == port);
        position.expect("one of these nodes")
    }

    /// Kills a node.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Restarts a killed node at its address as another cluster, which serves all slots.
    pub(crate) async fn reuse(&mut self, node: usize) {
        let file = ["--cluster-config-file", "another"];
        let bus = free_port().to_string();
        // Otherwise the former cluster notices the other one, and does not name the address.
        let bus: &[&str] = match version() {
            ..7 => &[],
            _ => &["--cluster-port", &bus],
        };
        self.nodes[node].launch_again_with(&[&file, bus].concat());
        self.serve_alone(node).await;
    }

    async fn serve_alone(&self, node: usize) {
        add_all_slots(&self.nodes[node]);
        until("all slots", || self.logs(), || ok(&self.nodes[node])).await;
    }

    /// Replaces a primary by its replica, and makes it another cluster. Its connections stay open.
    pub(crate) async fn leave(&mut self, node: usize) {
        let replica = self.replica_of(node);
        self.cli(replica, &["CLUSTER", "FAILOVER"]);
        let is_replica = || self.cli(node, &["ROLE"]).starts_with("slave");
        until("a replica", || self.logs(), is_replica).await;
        self.gone = Some(node);
        let id = self.id(node);
        for (_, other) in self.running() {
            other.cli(&["CLUSTER", "FORGET", &id]);
        }
        self.cli(node, &["CLUSTER", "RESET", "HARD"]);
        self.serve_alone(node).await;
    }

    /// Replaces a primary by its replica without a loss of writes, while another cluster has its address already.
    pub(crate) async fn give_away(&mut self, node: usize) {
        let replica = self.replica_of(node);
        pause_writes(&[&self.nodes[node], &self.nodes[replica]]).await;
        // Otherwise the replica would copy the data of the other cluster, or be elected before clients reach it.
        for (name, value) in [
            ("masteruser", "another"),
            ("masterauth", "wrong"),
            ("cluster-replica-no-failover", "yes"),
        ] {
            self.cli(replica, &["CONFIG", "SET", name, value]);
        }
        self.kill(node);
        self.gone = Some(node);
        self.reuse(node).await;
        sleep(Duration::from_secs(1)).await;
        self.cli(replica, &["CLUSTER", "FAILOVER", "TAKEOVER"]);
    }

    /// Restarts a killed node at its address without any keys. Returns when the Cluster is ready again. The
    /// node is then a replica if it was replaced.
    pub(crate) async fn restart(&mut self, node: usize) {
        self.nodes[node].launch_again();
        self.in_order_again().await;
    }

    /// Restarts all killed nodes at their addresses without any keys.
    pub(crate) async fn restart_all(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| !node.runs()) {
            node.launch_again();
        }
        self.in_order_again().await;
    }

    /// Waits until the running nodes agree that all slots are served, with replicas in sync.
    pub(crate) async fn in_order_again(&self) {
        until("a ready Cluster", || self.logs(), || self.in_order()).await;
    }

    /// Pauses the node. Its connections stay open.
    pub(crate) fn stop_process(&self, node: usize) {
        self.nodes[node].stop_process();
    }

    pub(crate) fn continue_process(&self, node: usize) {
        self.nodes[node].continue_process();
    }

    /// Waits until another node than `before` serves the slot and all running nodes agree. Returns the time
    /// since this call.
    pub(crate) async fn failover(&self, slot: u16, before: usize) -> Duration {
        let old = self.nodes[before].port();
        let done = || {
            self.running().all(|(_, server)| {
                let view = View::of(server);
                let serving = view.nodes.iter().find(|node| node.serves(slot));
                serving.is_some_and(|node| node.port != old) && ok(server)
            })
        };
        until("another primary", || self.logs(), done).await
    }

    /// Returns all keys of all running primaries, sorted.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for primary in self.primaries() {
            let answer = self.cli(primary, &["KEYS", "*"]);
            keys.extend(answer.lines().map(ToOwned::to_owned));
        }
        keys.sort_unstable();
        keys
    }

    fn running(&self) -> impl Iterator<Item = (usize, &RedisServer)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(|(node, server)| server.runs() && self.gone != Some(*node))
    }

    fn views(&self) -> Vec<(usize, View)> {
        let running = self.running();
        running
            .map(|(node, server)| (node, View::of(server)))
            .collect()
    }

    fn id(&self, node: usize) -> String {
        self.cli(node, &["CLUSTER", "MYID"])
    }

    /// Returns `true` if each running node has found all others, and considers the running ones reachable.
    fn whole(&self) -> bool {
        let running = self.running().count();
        self.running().all(|(_, server)| {
            let nodes = View::of(server).nodes;
            nodes.len() == NODES && nodes.iter().filter(|node| node.is_up).count() == running
        })
    }

    /// Returns `true` if the nodes also agree on owners and replicas, all slots are served, and the
    /// replicas are in sync.
    fn in_order(&self) -> bool {
        let views = self.views();
        let agreed = |(_, own): &(usize, View)| {
            let myself = own.myself();
            views.iter().all(|(_, view)| view.has(myself))
        };
        let replication = |server: &RedisServer| server.cli(&["INFO", "replication"]);
        let in_sync = |server: &RedisServer| {
            let replication = replication(server);
            replication.contains("role:master") || replication.contains("master_link_status:up")
        };
        let online = self.running().map(|(_, server)| {
            let replication = replication(server);
            replication.matches("state=online").count()
        });
        self.whole()
            && views.iter().all(agreed)
            && self.primaries().len() == PRIMARIES
            && self
                .running()
                .all(|(_, server)| ok(server) && in_sync(server))
            && online.sum::<usize>() == views.len() - PRIMARIES
    }

    fn logs(&self) -> String {
        let logs = self.nodes.iter().map(|node| {
            let view = node.runs().then(|| node.cli(&["CLUSTER", "NODES"]));
            let view = view.unwrap_or_default();
            format!("--- {}\n{}\n{view}", node.address(), node.log())
        });
        logs.collect::<Vec<_>>().join("\n")
    }
}

/// Makes a node of a cluster serve every slot.
pub(crate) fn add_all_slots(node: &RedisServer) {
    add_slots(node, 0..SLOTS);
}

/// Redis 6 has no `ADDSLOTSRANGE`.
fn add_slots(node: &RedisServer, slots: Range<usize>) {
    let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
    let slots: Vec<_> = slots.iter().map(String::as_str).collect();
    node.cli(&[&["CLUSTER", "ADDSLOTS"], &slots[..]].concat());
}

fn ok(server: &RedisServer) -> bool {
    let info = server.cli(&["CLUSTER", "INFO"]);
    info.contains("cluster_state:ok")
}
