//! Credentials that the program provides for each connection.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use redis::RedisConnectionInfo;

use crate::backend::BackendError;
use crate::backend::redis::command::{Cause, unavailable};

/// A user and a password or token, as a provider of
/// [`credentials`](crate::backend::redis::RedisBackendBuilder::credentials) returns them.
///
/// Its `Debug` prints neither.
#[derive(Clone)]
pub struct Credentials {
    user: String,
    password: String,
}

impl Credentials {
    /// Creates credentials. An empty user means the default user of the server.
    #[must_use]
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            password: password.into(),
        }
    }

    /// Returns these connection settings with the credentials.
    pub(crate) fn apply(&self, settings: RedisConnectionInfo) -> RedisConnectionInfo {
        let settings = settings.set_password(&self.password);
        match self.user.as_str() {
            "" => settings,
            user => settings.set_username(user),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

type Provided = Result<Credentials, Box<dyn Error + Send + Sync>>;

/// The program's source of credentials. redis-rs has a similar one, which logs the source's errors and renews
/// the login of open connections from a stream that must never end.
#[derive(Clone)]
pub(crate) struct Provider(Arc<dyn Fn() -> BoxFuture<'static, Provided> + Send + Sync>);

impl Provider {
    pub(crate) fn new<F, Fut, E>(provide: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self(Arc::new(move || {
            let provided = provide();
            async move { provided.await.map_err(Into::into) }.boxed()
        }))
    }

    /// Asks for the credentials of one connection. The caller sets the time limit.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the future of the provider is dropped.
    pub(super) async fn ask(&self) -> Result<Credentials, BackendError> {
        let provided = (self.0)().await;
        provided.map_err(|error| unavailable(Cause::NoCredentials(error)))
    }
}
