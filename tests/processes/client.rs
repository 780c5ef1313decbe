//! Clients and the responses that they received.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::history::Write;
use crate::process::Orders;
use crate::{ORDERS, PROCESSES, millis};

pub(crate) type Http = Client<HttpConnector, Empty<Bytes>>;

pub(crate) fn http() -> Http {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Sends requests for random orders to random processes. Some requests are cancelled, so the handler runs
/// without a client.
pub(crate) async fn client(world: Arc<Orders>, mut random: Rng, over: Arc<AtomicBool>) -> Seen {
    let http = http();
    let mut seen = Seen::default();
    while !over.load(Ordering::Relaxed) {
        let order = random.usize(1..=ORDERS);
        let address = world.address(random.usize(..PROCESSES));
        let patience = if random.bool() {
            millis(&mut random, 5..100)
        } else {
            millis(&mut random, 1_000..6_000)
        };
        match timeout(patience, put(&http, address, order)).await {
            Ok(Ok((status, body))) => seen.answer(status, &body, order),
            Ok(Err(_)) => {
                seen.count("connection failed");
                // The process is dead and restarts after a while.
                sleep(Duration::from_millis(50)).await;
            }
            Err(_) => seen.count("no response in time"),
        }
    }
    seen
}

pub(crate) async fn put(
    http: &Http,
    address: SocketAddr,
    order: usize,
) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let request = Request::put(format!("http://{address}/orders/{order}")).body(Empty::new())?;
    let response = http.request(request).await?;
    let status = response.status();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}

/// The responses that clients received.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) answers: BTreeMap<String, u64>,
    pub(crate) acknowledged: Vec<Write>,
}

impl Seen {
    pub(crate) fn answer(&mut self, status: StatusCode, body: &Bytes, order: usize) {
        let json: Value = serde_json::from_slice(body).unwrap_or_default();
        if status == StatusCode::OK {
            self.acknowledged.push(Write {
                order: order.to_string(),
                token: json["token"].as_str().unwrap().parse().unwrap(),
                quantity: json["quantity"].as_i64().unwrap(),
            });
            return self.count("200");
        }
        // The responses of the lock have a title, and those of the example are plain text.
        let plain = String::from_utf8_lossy(body);
        let reason = json["title"].as_str().unwrap_or_else(|| plain.trim_end());
        self.count(&format!("{} {reason}", status.as_u16()));
    }

    fn count(&mut self, answer: &str) {
        *self.answers.entry(answer.to_owned()).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (answer, count) in other.answers {
            *self.answers.entry(answer).or_default() += count;
        }
        self.acknowledged.extend(other.acknowledged);
    }
}
