//! The storage: accounts that are read, changed by the caller, and written back.
//!
//! Most programs use a database in this way, and two concurrent ones lose an update. The storage does not lock. It
//! only rejects the write of a stale holder by its fencing token.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tower_lock::FencingToken;

/// The owners of the accounts.
pub(crate) const CUSTOMERS: [&str; 4] = ["alice", "bob", "carol", "dave"];

/// How far away the storage is.
const LATENCY: Duration = Duration::from_millis(1);

/// One account. The counts are part of it, so an update that is lost is missing in them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) balance: i64,
    pub(crate) deposits: u64,
    pub(crate) transfers: u64,
}

pub(crate) struct Bank {
    rows: Mutex<BTreeMap<String, Row>>,
}

struct Row {
    account: Account,
    /// The largest token that has written it: in SQL, a column `fence BIGINT NOT NULL DEFAULT 0`.
    fence: i64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum BankError {
    #[error("there is no account `{0}`")]
    NoAccount(String),
    #[error("an account cannot pay itself")]
    SameAccount,
    #[error("the balance is too small")]
    NotEnough,
    #[error("a later holder of the lock has written already")]
    Overtaken,
}

impl Bank {
    /// A bank where every customer has the same to start with.
    pub(crate) fn open() -> Self {
        let rows = CUSTOMERS.map(|name| {
            let account = Account {
                name: name.to_owned(),
                balance: 1000,
                deposits: 0,
                transfers: 0,
            };
            (name.to_owned(), Row { account, fence: 0 })
        });
        Self {
            rows: Mutex::new(rows.into()),
        }
    }

    pub(crate) fn accounts(&self) -> Vec<Account> {
        let rows = self.rows();
        rows.values().map(|row| row.account.clone()).collect()
    }

    pub(crate) async fn read(&self, name: &str) -> Result<Account, BankError> {
        let account = self.rows().get(name).map(|row| row.account.clone());
        // The reply takes time, and the account can change before it arrives.
        tokio::time::sleep(LATENCY).await;
        account.ok_or_else(|| BankError::NoAccount(name.to_owned()))
    }

    /// Writes under a lock: a later holder's write stays.
    ///
    /// ```sql
    /// UPDATE account SET balance = $1, fence = $2 WHERE name = $3 AND fence <= $2
    /// ```
    pub(crate) fn write(&self, account: Account, token: FencingToken) -> Result<(), BankError> {
        let mut rows = self.rows();
        match rows.get_mut(&account.name) {
            None => Err(BankError::NoAccount(account.name)),
            Some(row) if row.fence > token.get() => Err(BankError::Overtaken),
            Some(row) => {
                let fence = token.get();
                *row = Row { account, fence };
                Ok(())
            }
        }
    }

    /// Writes whatever was there: the mistake that this program is about.
    pub(crate) fn overwrite(&self, account: Account) -> Result<(), BankError> {
        match self.rows().get_mut(&account.name) {
            None => Err(BankError::NoAccount(account.name)),
            Some(row) => {
                row.account = account;
                Ok(())
            }
        }
    }

    fn rows(&self) -> MutexGuard<'_, BTreeMap<String, Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
