//! Concurrent customers over real connections. Each sends one request after the other.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::bank::{Account, CUSTOMERS};
use crate::routes::{Deposit, Transfer};

/// The pauses between the requests of a customer, and between audits, while the bank stays open.
const PAUSE: Duration = Duration::from_millis(20);
const BETWEEN_AUDITS: Duration = Duration::from_secs(15);

/// The number of concurrent customers per route, and of requests per customer.
const SENDERS: usize = 32;
const REQUESTS_EACH: usize = 10;

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Route {
    UnlockedTransfer,
    Deposit,
    Transfer,
    Statement,
    UnlockedStatement,
}

/// The results of one route.
pub(crate) struct Seen {
    pub(crate) route: Route,
    /// Updates of an account that a customer saw confirmed, or statements.
    pub(crate) confirmed: u64,
    /// Confirmed updates that the accounts do not contain, or statements that do not add up.
    pub(crate) wrong: u64,
    pub(crate) busy: u64,
    /// One per request, in ascending order.
    pub(crate) latencies: Vec<Duration>,
}

/// Plays unlocked transfers alone. Then all locked routes run concurrently, because they share the accounts and their
/// locks, and with them statements without locks.
pub(crate) async fn play(address: SocketAddr) -> Result<Vec<Seen>, Failure> {
    let http = Http::new(address);
    let mut seen = at_once(&http, &[Route::UnlockedTransfer]).await?;
    let locked = [Route::Deposit, Route::Transfer, Route::Statement];
    let beside = [&locked[..], &[Route::UnlockedStatement]].concat();
    seen.extend(at_once(&http, &beside).await?);
    Ok(seen)
}

/// Sends requests until the program ends, so that the dashboard has something to show. Some customers are busier than
/// others, and now and then an audit holds an account for ten seconds.
pub(crate) async fn keep_busy(address: SocketAddr) -> Result<(), Failure> {
    let http = Http::new(address);
    let mut customers = JoinSet::new();
    for sender in 0..SENDERS {
        let http = http.clone();
        customers.spawn(async move {
            for n in sender.. {
                let routes = [Route::Deposit, Route::Transfer, Route::Statement];
                let (method, path, body) = routes[n % routes.len()].request(n)?;
                // A busy account is part of the picture.
                http.send(method, &path, body).await?;
                let pauses = u32::try_from(1 + sender + fastrand::usize(0..8))?;
                tokio::time::sleep(PAUSE * pauses).await;
            }
            Ok::<(), Failure>(())
        });
    }
    customers.spawn(async move {
        for customer in CUSTOMERS.iter().cycle() {
            tokio::time::sleep(BETWEEN_AUDITS).await;
            let path = format!("/accounts/{customer}/audit");
            http.send(Method::POST, &path, Vec::new()).await?;
        }
        Ok(())
    });
    while let Some(ended) = customers.join_next().await {
        ended??;
    }
    Ok(())
}

async fn at_once(http: &Http, routes: &[Route]) -> Result<Vec<Seen>, Failure> {
    let before = http.accounts().await?;
    let own = own_funds(&before);
    let mut crowds = Vec::new();
    for route in routes {
        let mut crowd = JoinSet::new();
        for sender in 0..SENDERS {
            crowd.spawn(send(http.clone(), *route, sender, own));
        }
        crowds.push((*route, crowd));
    }
    let mut answers = Vec::new();
    for (route, mut crowd) in crowds {
        let mut of_route = Vec::new();
        while let Some(sent) = crowd.join_next().await {
            of_route.extend(sent??);
        }
        answers.push((route, of_route));
    }
    let after = http.accounts().await?;
    let seen = answers.into_iter().map(|(route, answers)| {
        let booked = route.booked(&after) - route.booked(&before);
        Seen::new(route, answers, booked)
    });
    Ok(seen.collect())
}

/// Returns the money that no deposit brought. Transfers do not change it.
fn own_funds(accounts: &[Account]) -> i64 {
    let own = |account: &Account| account.balance - account.deposits.cast_signed();
    accounts.iter().map(own).sum()
}

enum Answer {
    Confirmed,
    /// A statement whose accounts do not add up.
    Torn,
    Busy,
}

async fn send(
    http: Http,
    route: Route,
    sender: usize,
    own: i64,
) -> Result<Vec<(Answer, Duration)>, Failure> {
    let mut answers = Vec::with_capacity(REQUESTS_EACH);
    for n in 0..REQUESTS_EACH {
        let (method, path, body) = route.request(sender + n)?;
        let sent_at = Instant::now();
        let (status, body) = http.send(method.clone(), &path, body).await?;
        let answer = match status {
            StatusCode::OK if route.is_statement() => {
                match own_funds(&serde_json::from_slice::<Vec<_>>(&body)?) == own {
                    true => Answer::Confirmed,
                    false => Answer::Torn,
                }
            }
            StatusCode::OK => Answer::Confirmed,
            StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => Answer::Busy,
            status => {
                let body = String::from_utf8_lossy(&body);
                return Err(format!("{method} {path}: {status}: {}", body.trim_end()).into());
            }
        };
        answers.push((answer, sent_at.elapsed()));
    }
    Ok(answers)
}

impl Route {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::UnlockedTransfer => "POST /unlocked/transfers",
            Self::Deposit => "POST /accounts/{account}/deposit",
            Self::Transfer => "POST /transfers",
            Self::Statement => "GET /statement",
            Self::UnlockedStatement => "GET /unlocked/statement",
        }
    }

    pub(crate) fn is_locked(self) -> bool {
        !matches!(self, Self::UnlockedTransfer | Self::UnlockedStatement)
    }

    fn is_statement(self) -> bool {
        matches!(self, Self::Statement | Self::UnlockedStatement)
    }

    /// Method, path and body of the `n`-th request: money goes round in both directions, so that locks
    /// taken one after the other would soon wait for each other in a circle.
    fn request(self, n: usize) -> Result<(Method, String, Vec<u8>), serde_json::Error> {
        let customer = |n: usize| CUSTOMERS[n % CUSTOMERS.len()];
        let transfer = || Transfer {
            from: customer(n).to_owned(),
            to: customer(n + 1 + n / CUSTOMERS.len() % 3).to_owned(),
            amount: 1,
        };
        let (path, body) = match self {
            Self::Statement => return Ok((Method::GET, "/statement".to_owned(), Vec::new())),
            Self::UnlockedStatement => {
                return Ok((Method::GET, "/unlocked/statement".to_owned(), Vec::new()));
            }
            Self::UnlockedTransfer => (
                "/unlocked/transfers".to_owned(),
                serde_json::to_vec(&transfer())?,
            ),
            Self::Deposit => (
                format!("/accounts/{}/deposit", customer(n)),
                serde_json::to_vec(&Deposit { amount: 1 })?,
            ),
            Self::Transfer => ("/transfers".to_owned(), serde_json::to_vec(&transfer())?),
        };
        Ok((Method::POST, path, body))
    }

    /// How many accounts one request updates; for a statement, 1.
    fn updates(self) -> u64 {
        match self {
            Self::UnlockedTransfer | Self::Transfer => 2,
            Self::Deposit | Self::Statement | Self::UnlockedStatement => 1,
        }
    }

    /// How many updates the accounts show.
    fn booked(self, accounts: &[Account]) -> u64 {
        let count = |account: &Account| match self {
            Self::Deposit => account.deposits,
            Self::UnlockedTransfer | Self::Transfer => account.transfers,
            Self::Statement | Self::UnlockedStatement => 0,
        };
        accounts.iter().map(count).sum()
    }
}

impl Seen {
    fn new(route: Route, answers: Vec<(Answer, Duration)>, booked: u64) -> Self {
        let (mut confirmed, mut torn, mut busy) = (0, 0, 0);
        let mut latencies = Vec::with_capacity(answers.len());
        for (answer, latency) in answers {
            match answer {
                Answer::Confirmed => confirmed += route.updates(),
                Answer::Torn => torn += 1,
                Answer::Busy => busy += 1,
            }
            latencies.push(latency);
        }
        latencies.sort_unstable();
        Self {
            route,
            confirmed: confirmed + torn,
            wrong: match route.is_statement() {
                true => torn,
                false => confirmed - booked,
            },
            busy,
            latencies,
        }
    }

    /// The latency that `percent` of the requests did not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.latencies.len() * percent).div_ceil(100);
        self.latencies[rank.saturating_sub(1)]
    }
}

/// A client that keeps its connections alive and uses them again.
#[derive(Clone)]
struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

impl Http {
    fn new(address: SocketAddr) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { client, address }
    }

    async fn accounts(&self) -> Result<Vec<Account>, Failure> {
        let (_, body) = self.send(Method::GET, "/accounts", Vec::new()).await?;
        Ok(serde_json::from_slice(&body)?)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))?;
        let response = self.client.request(request).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }
}
