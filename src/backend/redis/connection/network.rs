//! The settings and services that all connections of a backend share.

use std::time::Duration;

use crate::backend::BackendError;
use crate::backend::redis::command::{Cause, unavailable};
use crate::backend::redis::notify::Recovery;
use crate::task::Background;

#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) background: Background,
    pub(crate) recovery: Recovery,
}

/// Completes with the outcome, or with an error if there is no connection within `limit`.
pub(crate) async fn within<T>(
    limit: Duration,
    outcome: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    match tokio::time::timeout(limit, outcome).await {
        Ok(outcome) => outcome,
        Err(_elapsed) => Err(unavailable(Cause::NoConnection(limit))),
    }
}
