//! Managers over the backends of this crate. No other module names both.

use crate::{ConfigError, ConnectError, LockManager, LockManagerBuilder, Memory};

impl LockManager {
    /// Creates a manager with locks in the memory of this process and default settings, for a single
    /// process.
    ///
    /// Each call creates locks of its own: two managers of two calls exclude nothing from each other. Create one, and
    /// clone it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_lock::Error> {
    /// use tower_lock::LockManager;
    ///
    /// let locks = LockManager::in_memory();
    /// let _guard = locks.acquire("order:42").await?;
    /// assert!(locks.clone().acquire("order:42").no_wait().await.is_err());
    /// assert!(LockManager::in_memory().acquire("order:42").no_wait().await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[allow(clippy::missing_panics_doc)]
    pub fn in_memory() -> Self {
        Self::builder(Memory::new())
            .build()
            .expect("BUG: the default settings are valid")
    }

    /// Creates a manager with locks at a URL, with default settings.
    ///
    /// | URL | backend |
    /// |---|---|
    /// | `memory://` | the memory of this process |
    /// | `redis://[user:password@]host[:port][/db]` | one Redis server (feature `redis`) |
    /// | `redis+unix:///path` | one Redis server on a Unix socket |
    /// | `redis+sentinel://[user:password@]host[:port],…/service[/db]` | the primary that the sentinels name |
    /// | `redis+cluster://[user:password@]host[:port],…` | the cluster of these nodes |
    /// | `postgres://[user[:password]@]host[:port][/db]` | one PostgreSQL database (feature `postgres`) |
    /// | `rediss://…`, `rediss+sentinel://…`, `rediss+cluster://…` | the same through TLS (feature `redis-tls`) |
    ///
    /// The parameter `prefix` of a URL of Redis sets the prefix of all names, `lock:` by default:
    /// `redis://127.0.0.1:6379?prefix=orders:`. Services with different prefixes do not exclude each other.
    ///
    /// The [`guide`](crate::guide) lists the guarantees of each backend.
    ///
    /// The feature `tracing` logs the risks of a server, such as an eviction policy that may drop locks.
    /// Without the feature, `RedisBackend::builder` and its `warnings` return them.
    ///
    /// # Errors
    ///
    /// - [`ConnectError::Config`]: the URL is invalid, or a URL of Redis is used outside a Tokio runtime with timers.
    /// - [`ConnectError::Unreachable`]: no connection opened within 2 s, or no reply arrived within 500 ms.
    /// - [`ConnectError::Refused`]: the password is wrong, a permission is missing, a certificate is not trusted, or the
    ///   server is not supported.
    ///
    /// No error contains the password.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        LockManagerBuilder::new().connect(url).await
    }
}

impl LockManagerBuilder {
    /// Creates a builder of a manager, for a program that changes the defaults of locks, such as their wait.
    ///
    /// [`build`](Self::build) creates a manager in the memory of this process, and [`connect`](Self::connect) one at a
    /// URL:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_lock::ConnectError> {
    /// use std::time::Duration;
    /// use tower_lock::LockManagerBuilder;
    ///
    /// let url = "memory://"; // for example, from the command line
    /// let locks = LockManagerBuilder::new().wait(Duration::from_secs(1)).connect(url).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        LockManager::builder(Memory::new())
    }

    /// Creates the manager with locks at a URL, as [`LockManager::connect`]. The URL replaces the backend of the builder.
    ///
    /// The settings of Redis servers, such as the timeouts of commands, belong to
    /// `RedisBackend::builder`. Pass that backend to [`LockManager::builder`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`LockManager::connect`], and [`ConnectError::Config`] for a setting out of bounds.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    pub async fn connect(self, url: &str) -> Result<LockManager, ConnectError> {
        #[cfg(feature = "postgres")]
        if is_postgres(url) {
            let backend = crate::PostgresBackend::builder(url).connect().await?;
            return Ok(self.at(backend).build()?);
        }
        #[cfg(feature = "redis")]
        if !is_memory(url)? {
            let backend = crate::RedisBackend::builder(url).connect().await?;
            return Ok(self.at(backend).build()?);
        }
        self.connect_lazy(url)
    }

    /// Creates the manager at once, and connects in the background. An unreachable server is no error: acquires report
    /// it, and the feature `tracing` logs it.
    ///
    /// # Errors
    ///
    /// Returns [`ConnectError::Config`] as [`connect`](Self::connect), and for a cluster.
    ///
    /// ```
    /// # #[cfg(feature = "redis")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_lock::ConnectError> {
    /// use tower_lock::LockManagerBuilder;
    ///
    /// let locks = LockManagerBuilder::new().connect_lazy("redis://127.0.0.1:6379")?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "redis"))]
    /// # fn main() {}
    /// ```
    pub fn connect_lazy(self, url: &str) -> Result<LockManager, ConnectError> {
        if is_memory(url)? {
            return Ok(self.at(Memory::new()).build()?);
        }
        #[cfg(feature = "postgres")]
        if is_postgres(url) {
            let problem = "PostgreSQL is asked for its schema first: use `connect`";
            return Err(ConfigError::new("url", problem).into());
        }
        #[cfg(feature = "redis")]
        {
            let backend = crate::RedisBackend::builder(url).connect_lazy()?;
            Ok(self.at(backend).build()?)
        }
        #[cfg(not(feature = "redis"))]
        Err(ConfigError::new(
            "url",
            "scheme is not supported: use `memory://`; `redis://` requires the feature `redis`, and `postgres://` the feature `postgres`",
        )
        .into())
    }
}

#[cfg(feature = "postgres")]
fn is_postgres(url: &str) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    ["postgres", "postgresql"]
        .iter()
        .any(|it| scheme.eq_ignore_ascii_case(it))
}

/// Returns `true` for the memory of this process.
fn is_memory(url: &str) -> Result<bool, ConfigError> {
    match url.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("memory") => match rest {
            "" => Ok(true),
            _ => Err(ConfigError::new(
                "url",
                "`memory://` takes nothing behind it",
            )),
        },
        _ => Ok(false),
    }
}
