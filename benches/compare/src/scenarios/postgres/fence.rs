//! Transactions of four statements that commit to disk, with the fence, with a statement that does nothing, and with neither.

use tokio::time::Instant;

use super::{WINDOW, client, manager};
use crate::bench::Bench;
use crate::postgres_server::PostgresServer;
use crate::table::{Series, ratio};
use crate::target::{self, Target};
use crate::work::Failure;

const TABLE: &str = "CREATE TABLE account (id int PRIMARY KEY, cents int NOT NULL);
    INSERT INTO account VALUES (1, 0), (2, 0)";

/// `disk`: where commits go.
pub(super) async fn measure(
    bench: &mut Bench,
    server: &PostgresServer,
    disk: &str,
) -> Result<(), Failure> {
    server.run(TABLE).await;
    let guard = manager(server, true).await?.acquire("account").await?;
    let (fence, keys, tokens) = guard.fence();
    let mut client = client(server).await?;
    let fence = client.prepare(fence).await?;
    let nothing = client.prepare("SELECT 1").await?;
    let read = "SELECT cents FROM account WHERE id = $1";
    let read = client.prepare(read).await?;
    let write = "UPDATE account SET cents = cents + 1 WHERE id = $1";
    let write = client.prepare(write).await?;
    let mut rates: [Series; 3] = Default::default();
    for round in 0..3 * bench.rounds {
        let kind = round % 3;
        let (begun, mut count) = (Instant::now(), 0_u32);
        while begun.elapsed() < WINDOW {
            let transaction = client.transaction().await?;
            match kind {
                0 => {}
                1 => drop(transaction.query(&nothing, &[]).await?),
                _ => drop(transaction.query(&fence, &[&keys, &tokens]).await?),
            }
            for id in [1, 2] {
                transaction.query(&read, &[&id]).await?;
                transaction.execute(&write, &[&id]).await?;
            }
            transaction.commit().await?;
            count += 1;
        }
        rates[kind].add(f64::from(count) / begun.elapsed().as_secs_f64());
    }
    let [without, trip, with] = &rates;
    let share = with.median() / without.median();
    let note = target::note(
        &[Target::at_least("of the rate without", share, 0.8, 1)],
        String::new(),
    );
    let scenario = &format!("postgres, {disk}: transactions of four statements");
    let table = &mut bench.table;
    table.row(scenario, "without the fence", without.text(0, "/s"), "", "");
    let to = ratio(trip, without, "without");
    table.row(scenario, "with `SELECT 1`", trip.text(0, "/s"), to, "");
    let to = ratio(with, without, "without");
    table.row(scenario, "with the fence", with.text(0, "/s"), to, note);
    Ok(())
}
