//! A primary, two replicas, and three Sentinels that monitor them.

use std::time::Duration;

use super::patience::{until, wait_until};
use super::process::version;
use super::redis_server::RedisServer;

/// The service name of the set.
const SERVICE: &str = "locks";
const NODES: usize = 3;
const SENTINELS: usize = 3;
/// The silence, in milliseconds, after which a Sentinel considers a node dead.
const IMPATIENT: u32 = 1_000;
const PATIENT: u32 = 60_000;
/// The option by which a node states its host.
const ANNOUNCED: &str = "--replica-announce-ip";

/// Six processes: three nodes, of which one is the primary, and three Sentinels, of which two must agree.
///
/// A failover replaces a primary that does not reply within two seconds, plus four seconds per election
/// without a winner. Until a failover begins, and again after [`SentinelSet::failover`], the Sentinels wait
/// long before they consider a node dead. On a busy machine, they would otherwise begin a failover without
/// the test, and the old primary would continue to grant.
pub(crate) struct SentinelSet {
    nodes: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    /// The primary at the start, or after the last failover that the test awaited.
    settled: usize,
}

impl SentinelSet {
    pub(crate) fn start() -> Self {
        Self::start_with(&[], &[])
    }

    /// Starts with nodes that the Sentinels know by the name of their host.
    pub(crate) fn start_by_name() -> Self {
        Self::start_with(&[ANNOUNCED, "localhost"], &[])
    }

    /// Starts with more options for the nodes and for the Sentinels, such as `["--requirepass", "secret",
    /// "--masterauth", "secret"]` and `["--requirepass", "other"]`.
    ///
    /// Returns when the replicas are in sync and each Sentinel has found all others.
    pub(crate) fn start_with(of_nodes: &[&str], of_sentinels: &[&str]) -> Self {
        // By default, the primary waits five seconds for more replicas before it sends its data.
        let options = [&["--repl-diskless-sync-delay", "0"], of_nodes].concat();
        let mut set = Self {
            nodes: (0..NODES)
                .map(|_| RedisServer::start_with(&options))
                .collect(),
            sentinels: Vec::new(),
            settled: 0,
        };
        let (host, primary) = (host(&set.nodes[0]), set.nodes[0].port().to_string());
        for replica in &set.nodes[1..] {
            replica.cli(&["REPLICAOF", host, &primary]);
        }
        wait_until("replicas in sync", || set.logs(), || set.in_sync());
        // A Sentinel queries the replicas at its start, and then only every ten seconds.
        let configuration = configuration(&set.nodes[0]);
        set.sentinels = (0..SENTINELS)
            .map(|_| sentinel(&configuration, of_sentinels))
            .collect();
        wait_until("Sentinels that agree", || set.logs(), || set.in_order());
        set
    }

    /// Returns the service name for the URL of a client.
    pub(crate) fn service(&self) -> &'static str {
        SERVICE
    }

    /// Returns the addresses of the Sentinels: `h1:p1,h2:p2,h3:p3`.
    pub(crate) fn addresses(&self) -> String {
        let addresses = self.sentinels.iter().map(RedisServer::address);
        addresses.collect::<Vec<_>>().join(",")
    }

    /// Returns the ports of the Sentinels, for proxies in front of them.
    pub(crate) fn sentinel_ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(RedisServer::port).collect()
    }

    pub(crate) fn url(&self, service: &str) -> String {
        format!("redis+sentinel://{}/{service}", self.addresses())
    }

    pub(crate) fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    pub(crate) fn node(&self, node: usize) -> &RedisServer {
        &self.nodes[node]
    }

    pub(crate) fn sentinel(&mut self, sentinel: usize) -> &mut RedisServer {
        &mut self.sentinels[sentinel]
    }

    /// Kills a Sentinel, and starts another one at a new address, which monitors the same primary.
    pub(crate) fn replace_sentinel(&mut self, index: usize) {
        let primary = self.primary();
        self.sentinels[index].kill();
        self.sentinels[index] = sentinel(&configuration(&self.nodes[primary]), &[]);
    }

    /// Waits until each running Sentinel has found the others.
    pub(crate) async fn sentinels_agree(&self) {
        let in_order = || self.in_order();
        until("Sentinels that agree", || self.logs(), in_order).await;
    }

    /// Runs a command on a node as its administrator.
    pub(crate) fn cli(&self, node: usize, args: &[&str]) -> String {
        self.nodes[node].cli(args)
    }

    /// Returns the node that most Sentinels name, even if it does not run.
    pub(crate) fn primary(&self) -> usize {
        self.named().expect("most Sentinels name the same node")
    }

    /// Returns the host of the primary, as the first Sentinel names it.
    pub(crate) fn named_host(&self) -> String {
        let answer = self.sentinels[0].cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        answer.lines().next().unwrap_or_default().to_owned()
    }

    /// Kills the primary. Returns its number.
    pub(crate) fn kill_primary(&mut self) -> usize {
        let primary = self.primary();
        self.nodes[primary].kill();
        self.replace_primary();
        primary
    }

    /// Pauses the primary. Returns its number.
    pub(crate) fn stop_primary(&self) -> usize {
        let primary = self.primary();
        self.nodes[primary].stop_process();
        self.replace_primary();
        primary
    }

    /// Makes the Sentinels replace a primary that has been silent for a second.
    pub(crate) fn replace_primary(&self) {
        self.take_for_dead_after(IMPATIENT);
    }

    /// Makes the Sentinels replace a primary that was made a replica. They consider it dead two `INFO`
    /// periods after its role changed. For Sentinels of Redis 6 these are 30 s, so the test commands the
    /// failover.
    pub(crate) fn replace_demoted_primary(&self) {
        if version() < 7 {
            self.sentinels[0].cli(&["SENTINEL", "FAILOVER", SERVICE]);
        } else {
            self.replace_primary();
        }
    }

    fn take_for_dead_after(&self, ms: u32) {
        let set = ["SENTINEL", "SET", SERVICE, "down-after-milliseconds"];
        for sentinel in self.sentinels.iter().filter(|it| it.runs()) {
            sentinel.cli(&[&set[..], &[&ms.to_string()]].concat());
        }
    }

    /// Continues a stopped node. A former primary considers itself the primary until the Sentinels
    /// reconfigure it, two seconds later.
    pub(crate) fn continue_node(&self, node: usize) {
        self.nodes[node].continue_process();
    }

    /// Pauses the replicas. The primary keeps its connections to them, but no write is acknowledged.
    /// Without replicas, no failover is possible either.
    pub(crate) fn stop_replicas(&self) {
        self.replicas().for_each(RedisServer::stop_process);
    }

    pub(crate) fn continue_replicas(&self) {
        self.replicas().for_each(RedisServer::continue_process);
    }

    /// Restarts a killed node without any data, as a replica if another node is the primary by now. Returns
    /// when the set is ready again.
    pub(crate) async fn restart(&mut self, node: usize) {
        let primary = self.primary();
        if primary == node {
            self.nodes[node].launch_again();
        } else {
            let port = self.nodes[primary].port().to_string();
            let host = host(&self.nodes[primary]).to_owned();
            self.nodes[node].launch_again_with(&["--replicaof", &host, &port]);
        }
        self.in_order_again().await;
    }

    /// Waits until the running nodes are in sync and in their roles, and all Sentinels agree. No node may
    /// be stopped, because the Sentinels may still consider it alive.
    pub(crate) async fn in_order_again(&self) {
        let in_order = || self.in_sync() && self.in_order();
        until("a ready set", || self.logs(), in_order).await;
    }

    /// Waits until most Sentinels name another primary than before, and that node agrees. Returns the time
    /// since this call.
    pub(crate) async fn failover(&mut self) -> Duration {
        let before = self.settled;
        let other = || self.named().filter(|node| *node != before);
        let is_primary = |node: usize| self.nodes[node].runs() && role(&self.nodes[node]).is_none();
        let done = || other().is_some_and(is_primary);
        let took = until("another primary", || self.logs(), done).await;
        self.settled = self.primary();
        self.take_for_dead_after(PATIENT);
        took
    }

    fn replicas(&self) -> impl Iterator<Item = &RedisServer> {
        let primary = self.primary();
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(move |(node, server)| (node != primary).then_some(server))
    }

    /// Returns the node that a majority of all Sentinels names.
    fn named(&self) -> Option<usize> {
        let sentinels = self.sentinels.iter().filter(|sentinel| sentinel.runs());
        let named: Vec<_> = sentinels.filter_map(|it| self.named_by(it)).collect();
        (0..NODES).find(|node| named.iter().filter(|it| *it == node).count() > SENTINELS / 2)
    }

    fn named_by(&self, sentinel: &RedisServer) -> Option<usize> {
        let answer = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        let port: u16 = answer.lines().last()?.parse().ok()?;
        self.nodes.iter().position(|node| node.port() == port)
    }

    /// Returns `true` if each running node is a primary or a replica in sync.
    fn in_sync(&self) -> bool {
        let mut running = self.nodes.iter().filter(|node| node.runs());
        let replicas = self.nodes.iter().filter(|node| node.runs()).count() - 1;
        running.all(|node| match role(node) {
            None => {
                node.cli(&["INFO", "replication"])
                    .matches("state=online")
                    .count()
                    == replicas
            }
            Some(state) => state == "connected",
        })
    }

    /// Returns `true` if each running Sentinel reports the other Sentinels, and the running nodes in their
    /// roles.
    fn in_order(&self) -> bool {
        let running = |servers: &[RedisServer]| servers.iter().filter(|it| it.runs()).count();
        let (nodes, sentinels) = (running(&self.nodes), running(&self.sentinels));
        // Since Valkey 9, a Sentinel shows the votes of the last failover until the next one.
        let votes = |seen: &dyn Fn(&str, &str, &str) -> usize| match version() {
            ..9 => 0,
            _ => seen("SENTINELS", "flags", "sentinel,master_down"),
        };
        self.sentinels
            .iter()
            .filter(|it| it.runs())
            .all(|sentinel| {
                let seen = |what: &str, field: &str, wanted: &str| {
                    let answer = sentinel.cli(&["SENTINEL", what, SERVICE]);
                    count(&answer, field, wanted)
                };
                seen("MASTER", "flags", "master") == 1
                    && seen("REPLICAS", "flags", "slave") == nodes - 1
                    && seen("REPLICAS", "master-link-status", "ok") >= nodes - 1
                    && seen("SENTINELS", "flags", "sentinel") + votes(&seen) == sentinels - 1
            })
    }

    pub(crate) fn logs(&self) -> String {
        let servers = self.nodes.iter().chain(&self.sentinels);
        let logs = servers.map(|server| format!("--- {}\n{}", server.address(), server.log()));
        logs.collect::<Vec<_>>().join("\n")
    }
}

/// Returns the host by which the others know a node.
fn host(node: &RedisServer) -> &str {
    node.option(ANNOUNCED).unwrap_or("127.0.0.1")
}

fn configuration(primary: &RedisServer) -> String {
    let (host, port) = (host(primary), primary.port());
    let names = match primary.option(ANNOUNCED) {
        Some(_) => "sentinel resolve-hostnames yes\nsentinel announce-hostnames yes\n",
        None => "",
    };
    let password = primary.option("--requirepass").map_or(String::new(), |it| {
        format!("sentinel auth-pass {SERVICE} {it}\n")
    });
    format!(
        "{names}\
         sentinel monitor {SERVICE} {host} {port} 2\n\
         sentinel down-after-milliseconds {SERVICE} {PATIENT}\n\
         sentinel failover-timeout {SERVICE} 2000\n\
         sentinel parallel-syncs {SERVICE} 2\n\
         {password}"
    )
}

fn sentinel(configuration: &str, options: &[&str]) -> RedisServer {
    let options = [&["--sentinel"], options].concat();
    let sentinel = RedisServer::try_start(Some(configuration), &options)
        .unwrap_or_else(|log| panic!("no Sentinel: {log}"));
    // Redis 6 has fixed periods, so its Sentinels take longer for everything.
    if version() < 7 {
        return sentinel;
    }
    // A new primary counts as down if no Sentinel has connected to it for `down-after-milliseconds`. A
    // Sentinel attempts this once per ping period, which is equally long.
    sentinel.cli(&["SENTINEL", "DEBUG", "PING-PERIOD", "400"]);
    // For five periods, they remember that others considered the primary dead. This includes a new primary.
    sentinel.cli(&["SENTINEL", "DEBUG", "ASK-PERIOD", "200"]);
    // The periods of their discovery and of their queries to the nodes.
    sentinel.cli(&["SENTINEL", "DEBUG", "PUBLISH-PERIOD", "500"]);
    sentinel.cli(&["SENTINEL", "DEBUG", "INFO-PERIOD", "1000"]);
    // The time for which they do nothing after their machine hung, as a busy one does.
    sentinel.cli(&["SENTINEL", "DEBUG", "TILT-PERIOD", "1000"]);
    sentinel
}

/// Returns `None` for a primary, and the state of its link for a replica.
fn role(node: &RedisServer) -> Option<String> {
    let role = node.cli(&["ROLE"]);
    let mut lines = role.lines();
    (lines.next()? != "master").then(|| lines.nth(2).unwrap_or_default().to_owned())
}

/// Returns how often `field` has this value in a reply of alternating names and values.
fn count(answer: &str, field: &str, wanted: &str) -> usize {
    let lines: Vec<_> = answer.split('\n').collect();
    let pairs = lines.chunks(2).filter(|pair| **pair == [field, wanted]);
    pairs.count()
}
