//! A cluster with one name for all servers of a shard.

use tokio::net::TcpListener;
use tokio::time::Instant;
use tower_lock::RedisBackend;

use super::support::{Client, NEXT_GRANT, acknowledged};
use crate::support::cluster::add_all_slots;
use crate::support::patience::until;
use crate::support::redis_server::{FREE_PORT, RedisServer};
use crate::support::vip::Vip;

/// Two nodes of one shard, which announce the same address.
struct Shard {
    old: RedisServer,
    new: RedisServer,
    vip: Vip,
}

impl Shard {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let announced = listener.local_addr().unwrap().port().to_string();
        let options = [
            ["--cluster-enabled", "yes"],
            ["--cluster-node-timeout", "1000"],
            ["--cluster-port", FREE_PORT],
            ["--cluster-announce-ip", "127.0.0.1"],
            ["--cluster-announce-port", &announced],
            ["--cluster-replica-validity-factor", "0"],
            ["--repl-diskless-sync-delay", "0"],
        ];
        let [old, new] = [1, 2].map(|epoch| {
            let node = RedisServer::start_with(options.as_flattened());
            node.cli(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()]);
            node
        });
        // The replica connects to the announced address as well.
        let vip = Vip::on(listener, old.port());
        add_all_slots(&old);
        let bus = new.option("--cluster-port").unwrap();
        old.cli(&["CLUSTER", "MEET", "127.0.0.1", &new.port().to_string(), bus]);
        let shard = Self { old, new, vip };
        let knows_all = || {
            shard
                .new
                .cli(&["CLUSTER", "INFO"])
                .contains("cluster_state:ok")
                && shard.new.cli(&["CLUSTER", "NODES"]).lines().count() == 2
        };
        until("met", || shard.new.log(), knows_all).await;
        shard
            .new
            .cli(&["CLUSTER", "REPLICATE", &shard.old.cli(&["CLUSTER", "MYID"])]);
        let replication = || shard.new.cli(&["INFO", "replication"]);
        until(
            "in sync",
            || shard.new.log(),
            || replication().contains("master_link_status:up"),
        )
        .await;
        shard
    }

    fn url(&self) -> String {
        format!("redis+cluster://{}", self.vip.address())
    }

    async fn fail_over(&self) {
        self.vip.lead_to(self.new.port());
        self.new.cli(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        let role = |it: &RedisServer| it.cli(&["ROLE"]);
        let is_over =
            || role(&self.new).contains("master") && role(&self.old).contains("connected");
        until("a failover", || self.old.log(), is_over).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_to_same_address_serves_and_keeps_locks() {
    let shard = Shard::start().await;
    let by_url = || RedisBackend::builder(shard.url());
    let clients = [
        Client::connect("alone", by_url()).await,
        Client::connect("replicas", acknowledged(by_url())).await,
    ];
    shard.fail_over().await;
    let deadline = Instant::now() + NEXT_GRANT;
    for client in &clients {
        client.is_served(deadline).await;
    }
    for client in clients {
        client.keeps_lock().await;
    }
}
