//! A primary, two replicas, and three Sentinels that watch over them.

use std::time::Duration;

use super::patience::{until, wait_until};
use super::process::version;
use super::redis_server::RedisServer;

/// What the Sentinels call the set.
const SERVICE: &str = "locks";
const NODES: usize = 3;
const SENTINELS: usize = 3;
/// For how many milliseconds nothing must be heard of a node that is taken for dead.
const IMPATIENT: u32 = 1_000;
const PATIENT: u32 = 60_000;

/// Six processes: three nodes, of which one is the primary, and three Sentinels, of which two must
/// agree. Once it is to be replaced, a primary that does not answer is so in two seconds, and four
/// later for each election that no Sentinel wins.
///
/// Until then, and again after [`SentinelSet::failover`], the Sentinels are patient: nodes that a busy
/// machine keeps waiting would be taken for dead, and a failover that no test has begun leaves a
/// primary that goes on granting.
pub(crate) struct SentinelSet {
    nodes: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    /// The primary of the start, or of the last failover that was waited for.
    settled: usize,
}

impl SentinelSet {
    pub(crate) fn start() -> Self {
        Self::start_with(&[], &[])
    }

    /// Starts with more options for the nodes and for the Sentinels, such as
    /// `["--requirepass", "secret", "--masterauth", "secret"]` and `["--requirepass", "other"]`.
    ///
    /// Returns when the replicas are in sync, and each Sentinel knows all the others.
    pub(crate) fn start_with(of_nodes: &[&str], of_sentinels: &[&str]) -> Self {
        // The primary waits five seconds for more replicas before it sends its data, if it may.
        let options = [&["--repl-diskless-sync-delay", "0"], of_nodes].concat();
        let mut set = Self {
            nodes: (0..NODES)
                .map(|_| RedisServer::start_with(&options))
                .collect(),
            sentinels: Vec::new(),
            settled: 0,
        };
        let primary = set.nodes[0].port().to_string();
        for replica in &set.nodes[1..] {
            replica.cli(&["REPLICAOF", "127.0.0.1", &primary]);
        }
        wait_until("replicas in sync", || set.logs(), || set.in_sync());
        // A Sentinel asks at its start who the replicas are, and then only every ten seconds.
        let configuration = configuration(&set.nodes[0]);
        set.sentinels = (0..SENTINELS)
            .map(|_| sentinel(&configuration, of_sentinels))
            .collect();
        wait_until("Sentinels that agree", || set.logs(), || set.in_order());
        set
    }

    /// The name for the URL of a client.
    pub(crate) fn service(&self) -> &'static str {
        SERVICE
    }

    /// Where the Sentinels are: `h1:p1,h2:p2,h3:p3`.
    pub(crate) fn addresses(&self) -> String {
        let addresses = self.sentinels.iter().map(RedisServer::address);
        addresses.collect::<Vec<_>>().join(",")
    }

    /// The ports of the Sentinels, for proxies in front of them.
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

    /// Kills a Sentinel, and starts another one at a new address, which watches the same primary.
    pub(crate) fn replace_sentinel(&mut self, index: usize) {
        let primary = self.primary();
        self.sentinels[index].kill();
        self.sentinels[index] = sentinel(&configuration(&self.nodes[primary]), &[]);
    }

    /// Waits until each running Sentinel sees the others.
    pub(crate) async fn sentinels_agree(&self) {
        let in_order = || self.in_order();
        until("Sentinels that agree", || self.logs(), in_order).await;
    }

    /// Runs a command on a node as its administrator.
    pub(crate) fn cli(&self, node: usize, args: &[&str]) -> String {
        self.nodes[node].cli(args)
    }

    /// The node that most Sentinels name, whether it is up or not.
    pub(crate) fn primary(&self) -> usize {
        self.named().expect("most Sentinels name the same node")
    }

    /// Ends the primary as a crash does. Returns which it was.
    pub(crate) fn kill_primary(&mut self) -> usize {
        let primary = self.primary();
        self.nodes[primary].kill();
        self.replace_primary();
        primary
    }

    /// The primary stands still. Returns which it is.
    pub(crate) fn stop_primary(&self) -> usize {
        let primary = self.primary();
        self.nodes[primary].stop_process();
        self.replace_primary();
        primary
    }

    /// The Sentinels replace a primary that they have not heard of for a second.
    pub(crate) fn replace_primary(&self) {
        self.take_for_dead_after(IMPATIENT);
    }

    /// Makes the Sentinels replace a primary that was made a replica. They take it for dead two `INFO`
    /// periods after its role changed. For Sentinels of Redis 6 that is 30 s, so the test commands the
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

    /// A stopped node goes on where it stood: a former primary takes itself for one until the
    /// Sentinels have told it otherwise, two seconds later.
    pub(crate) fn continue_node(&self, node: usize) {
        self.nodes[node].continue_process();
    }

    /// Nobody acknowledges a write of the primary any more: it has its connections to the replicas,
    /// but they stand still. Without them there is no failover either.
    pub(crate) fn stop_replicas(&self) {
        self.replicas().for_each(RedisServer::stop_process);
    }

    pub(crate) fn continue_replicas(&self) {
        self.replicas().for_each(RedisServer::continue_process);
    }

    /// Starts a killed node without any data: as a replica of the primary, if that is another one
    /// by now. Returns when the set is in order again.
    pub(crate) async fn restart(&mut self, node: usize) {
        let primary = self.primary();
        if primary == node {
            self.nodes[node].launch_again();
        } else {
            let port = self.nodes[primary].port().to_string();
            self.nodes[node].launch_again_with(&["--replicaof", "127.0.0.1", &port]);
        }
        self.in_order_again().await;
    }

    /// Waits until the nodes that run are in sync and in their roles, and all Sentinels know it. Not
    /// while a node is stopped: patient Sentinels take it for one that runs.
    pub(crate) async fn in_order_again(&self) {
        let in_order = || self.in_sync() && self.in_order();
        until("a set in order", || self.logs(), in_order).await;
    }

    /// Waits until most Sentinels name another primary than before, and that one agrees. Tells how
    /// long it took from this call on.
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

    /// The node that a majority of all Sentinels names.
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

    /// Each running node is a primary, or a replica in sync.
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

    /// Each running Sentinel sees the other Sentinels, and the running nodes in their roles.
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

    fn logs(&self) -> String {
        let servers = self.nodes.iter().chain(&self.sentinels);
        let logs = servers.map(|server| format!("--- {}\n{}", server.address(), server.log()));
        logs.collect::<Vec<_>>().join("\n")
    }
}

fn configuration(primary: &RedisServer) -> String {
    let port = primary.port();
    let password = primary.option("--requirepass").map_or(String::new(), |it| {
        format!("sentinel auth-pass {SERVICE} {it}\n")
    });
    format!(
        "sentinel monitor {SERVICE} 127.0.0.1 {port} 2\n\
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
    // Redis 6 has fixed periods, and its Sentinels take longer for everything.
    if version() < 7 {
        return sentinel;
    }
    // A new primary counts as down when nobody has connected to it for `down-after-milliseconds`,
    // and that is tried once per ping period, which is as long.
    sentinel.cli(&["SENTINEL", "DEBUG", "PING-PERIOD", "400"]);
    // They remember five periods long that others took the primary for dead, and a new one with it.
    sentinel.cli(&["SENTINEL", "DEBUG", "ASK-PERIOD", "200"]);
    // How often they look for each other, and at the nodes.
    sentinel.cli(&["SENTINEL", "DEBUG", "PUBLISH-PERIOD", "500"]);
    sentinel.cli(&["SENTINEL", "DEBUG", "INFO-PERIOD", "1000"]);
    // How long they do nothing after their machine stood still, as a busy one does.
    sentinel.cli(&["SENTINEL", "DEBUG", "TILT-PERIOD", "1000"]);
    sentinel
}

/// `None` for a primary; for a replica the state of its link.
fn role(node: &RedisServer) -> Option<String> {
    let role = node.cli(&["ROLE"]);
    let mut lines = role.lines();
    (lines.next()? != "master").then(|| lines.nth(2).unwrap_or_default().to_owned())
}

/// How often `field` has this value in an answer of names and values by turns.
fn count(answer: &str, field: &str, wanted: &str) -> usize {
    let lines: Vec<_> = answer.split('\n').collect();
    let pairs = lines.chunks(2).filter(|pair| **pair == [field, wanted]);
    pairs.count()
}
