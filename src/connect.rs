//! Managers over the backends of this crate: the one place that knows both.

use crate::{ConfigError, ConnectError, LockManager, Memory};

impl LockManager {
    /// Locks in the memory of this process, with default settings: enough for a single process.
    #[must_use]
    #[allow(clippy::missing_panics_doc)]
    pub fn in_memory() -> Self {
        Self::builder(Memory::new())
            .build()
            .expect("BUG: the default settings are valid")
    }

    /// Locks at a URL, with default settings.
    ///
    /// | URL | backend |
    /// |---|---|
    /// | `memory://` | the memory of this process |
    /// | `redis://[user:password@]host[:port][/db]` | one Redis node (feature `redis`) |
    /// | `rediss://…` | the same through TLS (feature `redis-tls`) |
    /// | `redis+unix:///path` | one Redis node on a Unix socket |
    ///
    /// # Errors
    ///
    /// [`ConnectError::Config`] for a URL that cannot be used, [`ConnectError::Unreachable`] when
    /// nobody answers within the connect timeout, [`ConnectError::Refused`] for a wrong password or
    /// a missing permission. None of them holds the password.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        match url.split_once("://") {
            Some(("memory", "")) => Ok(Self::in_memory()),
            Some(("memory", _)) => {
                Err(ConfigError::new("url", "`memory://` takes nothing behind it").into())
            }
            #[cfg(feature = "redis")]
            Some(_) => {
                let backend = crate::RedisBackend::builder(url).connect().await?;
                Ok(Self::builder(backend).build()?)
            }
            #[cfg(not(feature = "redis"))]
            Some((scheme, _)) => Err(ConfigError::new(
                "url",
                format!("the scheme `{scheme}` is not supported by this build; `redis` needs the feature `redis`"),
            )
            .into()),
            None => Err(ConfigError::new("url", "it has no scheme such as `memory://` or `redis://`").into()),
        }
    }
}
