//! Pairs of acquire and release under new keys: 64 in flight, and 1.

use std::iter::repeat;

use tower_lock::LockManager;

use super::peers::Peer;
use super::{WINDOW, manager};
use crate::bench::{Bench, turns};
use crate::postgres_server::PostgresServer;
use crate::table::{Series, ratio};
use crate::target::{self, Target};
use crate::work::Failure;

const MANY: usize = 64;

pub(super) async fn many(bench: &mut Bench, server: &PostgresServer) -> Result<(), Failure> {
    let durable = manager(server, true).await?;
    let relaxed = manager(server, false).await?;
    let redis = LockManager::connect(&bench.server.url()).await?;
    let mut many = vec![
        Peer::ours("tower-lock on Redis", &redis, MANY),
        Peer::ours("tower-lock, durable", &durable, MANY),
        Peer::ours("tower-lock, relaxed", &relaxed, MANY),
        Peer::advisory(server, MANY).await?,
        Peer::row(server, MANY).await?,
        Peer::batches("the bare batches, durable", server, true).await?,
        Peer::batches("the bare batches, relaxed", server, false).await?,
        Peer::callers("the bare batches for callers, durable", server, MANY).await?,
    ];
    many.extend(Peer::distributed(server, MANY).await?);
    rounds(bench, &mut many).await?;
    let bounds = [None, Some(0.5), Some(0.8)].into_iter().chain(repeat(None));
    for (peer, bound) in many.iter().zip(bounds) {
        let to_redis = peer.rate.median() / many[0].rate.median();
        let target = bound.map(|least| Target::at_least("of Redis", to_redis, least, 1));
        let scenario = "postgres, 64 in flight: pairs";
        tell(bench, scenario, peer, &many[0].rate, "Redis", target);
    }
    Ok(())
}

/// `disk`: where commits go.
pub(super) async fn one(
    bench: &mut Bench,
    server: &PostgresServer,
    disk: &str,
) -> Result<(), Failure> {
    let durable = manager(server, true).await?;
    let relaxed = manager(server, false).await?;
    let mut one = vec![
        Peer::commit(server).await?,
        Peer::ours("tower-lock, durable", &durable, 1),
        Peer::ours("tower-lock, relaxed", &relaxed, 1),
        Peer::advisory(server, 1).await?,
        Peer::row(server, 1).await?,
        Peer::bare(server).await?,
    ];
    one.extend(Peer::distributed(server, 1).await?);
    rounds(bench, &mut one).await?;
    let bounds = [None, Some(1.15)].into_iter().chain(repeat(None));
    for (peer, bound) in one.iter().zip(bounds) {
        let time = one[0].rate.median() / peer.rate.median();
        let target =
            bound.map(|most| Target::at_most("time of a commit and a trip", time, most, 2));
        let scenario = format!("postgres, 1 in flight, {disk}: pairs");
        tell(bench, &scenario, peer, &one[0].rate, "one commit", target);
    }
    Ok(())
}

async fn rounds(bench: &Bench, peers: &mut [Peer]) -> Result<(), Failure> {
    for round in 0..bench.rounds {
        for at in turns(round, peers.len()) {
            peers[at].run(WINDOW).await?;
        }
    }
    Ok(())
}

fn tell(
    bench: &mut Bench,
    scenario: &str,
    peer: &Peer,
    base: &Series,
    name: &str,
    target: Option<Target>,
) {
    let targets: Vec<_> = target.into_iter().collect();
    let note = target::note(&targets, String::new());
    let (figure, ratio) = (peer.rate.text(0, "/s"), ratio(&peer.rate, base, name));
    bench.table.row(scenario, peer.name, figure, ratio, note);
}
