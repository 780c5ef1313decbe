//! The HTTP API and its locks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRef, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tower_lock::{
    Held, LockKey, LockKeys, LockLayer, LockManager, LockRejection, LockScopeLayer, LockTarget,
    Locked,
};

use crate::bank::{Account, Bank, BankError, CUSTOMERS};

/// How long a request waits for its locks.
const WAIT: Duration = Duration::from_secs(2);

/// The path of the dashboard.
#[cfg(feature = "dashboard")]
const DASHBOARD: &str = "/ops/locks";

/// The state of the handlers. `Locked` obtains the manager through `FromRef`.
#[derive(Clone)]
struct App {
    bank: Arc<Bank>,
    locks: LockManager,
}

impl FromRef<App> for Arc<Bank> {
    fn from_ref(app: &App) -> Self {
        Arc::clone(&app.bank)
    }
}

impl FromRef<App> for LockManager {
    fn from_ref(app: &App) -> Self {
        app.locks.clone()
    }
}

pub(crate) fn app(bank: Arc<Bank>, locks: LockManager) -> Router {
    // The key is ["account", <value of the path parameter>].
    let account = LockLayer::by_path_param(locks.clone(), "account").wait(WAIT);
    // Keeps the locks of `Locked` until the response is complete.
    let scope = LockScopeLayer::new().wait(WAIT);
    let app = Router::new();
    #[cfg(feature = "dashboard")]
    let app = app.nest(DASHBOARD, dashboard(&locks));
    app.route("/accounts", get(accounts))
        .route(
            "/accounts/{account}/deposit",
            post(deposit).route_layer(account.clone()),
        )
        .route(
            "/accounts/{account}/audit",
            post(audit).route_layer(account),
        )
        .route("/transfers", post(transfer).route_layer(scope))
        .route("/statement", get(statement))
        .route("/unlocked/transfers", post(unlocked_transfer))
        .route("/unlocked/statement", get(unlocked_statement))
        .with_state(App { bank, locks })
}

/// Shows the locks to every client, because the bank listens on the loopback interface only. A service of your own
/// needs protection: see `guide::dashboard`.
#[cfg(feature = "dashboard")]
fn dashboard(locks: &LockManager) -> Router<App> {
    tower_lock::dashboard::Dashboard::new(locks.clone())
        .unprotected()
        .router()
}

async fn accounts(State(bank): State<Arc<Bank>>) -> Json<Vec<Account>> {
    Json(bank.accounts())
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Deposit {
    pub(crate) amount: u32,
}

/// The layer holds the lock of the account. The handler reads its token from `Held`.
async fn deposit(
    held: Held,
    State(bank): State<Arc<Bank>>,
    Path(name): Path<String>,
    Json(deposit): Json<Deposit>,
) -> Result<Json<Account>, BankError> {
    let mut account = bank.read(&name).await?;
    account.balance += i64::from(deposit.amount);
    account.deposits += 1;
    bank.write(account.clone(), held.fencing_token())?;
    Ok(Json(account))
}

/// Holds the lock for 10 s, so that other requests wait.
async fn audit(
    State(bank): State<Arc<Bank>>,
    Path(name): Path<String>,
) -> Result<Json<Account>, BankError> {
    let account = bank.read(&name).await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    Ok(Json(account))
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Transfer {
    /// Names and not numbers: `7` and `07` would be one account under two locks.
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) amount: u32,
}

/// Locks both accounts, all or none, in an order that cannot deadlock. The keys have the parts of
/// `by_path_param(.., "account")`, so deposits and transfers exclude each other.
impl LockTarget for Transfer {
    fn lock_keys(&self) -> LockKeys {
        LockKeys::from([
            LockKey::from_parts(["account", &self.from]),
            LockKey::from_parts(["account", &self.to]),
        ])
    }
}

/// The extractor acquires the locks after it has read the body. The scope releases them.
async fn transfer(
    State(bank): State<Arc<Bank>>,
    Locked(Json(transfer), guard): Locked<Json<Transfer>>,
) -> Result<Json<[Account; 2]>, BankError> {
    let (from, to) = book(&bank, &transfer).await?;
    bank.write(from.clone(), guard.fencing_token())?;
    bank.write(to.clone(), guard.fencing_token())?;
    Ok(Json([from, to]))
}

/// Locks all accounts shared: statements run beside each other, but beside no deposit or transfer. So the balances
/// belong together, although each is read by a query of its own.
async fn statement(State(App { bank, locks }): State<App>) -> Result<Json<Vec<Account>>, Response> {
    let accounts = CUSTOMERS.map(|name| LockKey::from_parts(["account", name]));
    let guard = locks.acquire(accounts).shared().wait(WAIT).await;
    // Nothing is done yet, so the client may send the request again.
    let _guard = guard.map_err(|error| LockRejection::from(error).into_response())?;
    unlocked_statement(State(bank))
        .await
        .map_err(IntoResponse::into_response)
}

/// A statement without locks.
async fn unlocked_statement(
    State(bank): State<Arc<Bank>>,
) -> Result<Json<Vec<Account>>, BankError> {
    let mut accounts = Vec::new();
    for name in CUSTOMERS {
        accounts.push(bank.read(name).await?);
    }
    Ok(Json(accounts))
}

/// Transfers without locks.
async fn unlocked_transfer(
    State(bank): State<Arc<Bank>>,
    Json(transfer): Json<Transfer>,
) -> Result<Json<[Account; 2]>, BankError> {
    let (from, to) = book(&bank, &transfer).await?;
    bank.overwrite(from.clone())?;
    bank.overwrite(to.clone())?;
    Ok(Json([from, to]))
}

/// Reads both accounts and changes the copies. The caller needs their locks to write them back.
async fn book(bank: &Bank, transfer: &Transfer) -> Result<(Account, Account), BankError> {
    if transfer.from == transfer.to {
        return Err(BankError::SameAccount);
    }
    let mut from = bank.read(&transfer.from).await?;
    let mut to = bank.read(&transfer.to).await?;
    let amount = i64::from(transfer.amount);
    if from.balance < amount {
        return Err(BankError::NotEnough);
    }
    from.balance -= amount;
    to.balance += amount;
    from.transfers += 1;
    to.transfers += 1;
    Ok((from, to))
}

impl IntoResponse for BankError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NoAccount(_) => StatusCode::NOT_FOUND,
            Self::SameAccount | Self::NotEnough => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Overtaken => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, format!("{self}\n")).into_response()
    }
}

pub(crate) fn things_to_try(address: SocketAddr) -> String {
    #[cfg(feature = "dashboard")]
    let watch = format!("http://{address}{DASHBOARD} shows the locks.");
    #[cfg(not(feature = "dashboard"))]
    let watch = "With `--features dashboard`, a page shows the locks.";
    format!(
        "
The bank stays open. {watch}

Things to try, from another terminal:

  curl http://{address}/accounts
  curl http://{address}/statement
  curl --json '{{\"amount\": 5}}' http://{address}/accounts/alice/deposit
  curl --json '{{\"from\": \"alice\", \"to\": \"bob\", \"amount\": 5}}' http://{address}/transfers

An audit holds the account for ten seconds; a deposit gives up after two, with 409 and the reason:

  curl -X POST http://{address}/accounts/alice/audit &
  curl -i --json '{{\"amount\": 5}}' http://{address}/accounts/alice/deposit

Ctrl-C closes the bank.
"
    )
}
