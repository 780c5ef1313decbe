//! The requests of the tenants, over real connections.

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;

use crate::service::Report;
use crate::{Failure, TENANTS};

/// What one tenant has seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) reports: Vec<Report>,
    pub(crate) rejected: usize,
}

impl Seen {
    /// Returns how many reports ran at the same time, over all processes.
    pub(crate) fn most_at_a_time(&self) -> usize {
        let at_begin_of = |one: &Report| {
            let running = |it: &&Report| it.began <= one.began && one.began < it.ended;
            self.reports.iter().filter(running).count()
        };
        self.reports.iter().map(at_begin_of).max().unwrap_or(0)
    }
}

/// Sends all requests at once, in turns to the services.
pub(crate) async fn send(ports: &[u16]) -> Result<[Seen; TENANTS.len()], Failure> {
    let http = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut requests = JoinSet::new();
    for (at, (tenant, count)) in TENANTS.into_iter().enumerate() {
        for n in 0..count {
            let url = format!("http://127.0.0.1:{}/report", ports[n % ports.len()]);
            // Another run may use the same store.
            let tenant = format!("{tenant}:{}", std::process::id());
            let request = Request::get(url).header("x-tenant", tenant);
            let response = http.request(request.body(Empty::new())?);
            requests.spawn(async move {
                let response = response.await?;
                let status = response.status();
                let body = response.into_body().collect().await?.to_bytes();
                Ok::<_, Failure>((at, status, body))
            });
        }
    }
    let mut all: [Seen; TENANTS.len()] = Default::default();
    while let Some(outcome) = requests.join_next().await {
        let (at, status, body) = outcome??;
        match status {
            StatusCode::OK => all[at].reports.push(serde_json::from_slice(&body)?),
            StatusCode::TOO_MANY_REQUESTS => all[at].rejected += 1,
            _ => return Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into()),
        }
    }
    Ok(all)
}
