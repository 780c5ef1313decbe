//! The settings for reaching the servers: credentials, addresses and certificates.

use std::error::Error;
use std::sync::Arc;

use redis::RedisConnectionInfo;

use super::RedisBackendBuilder;
use crate::backend::redis::connection::{Credentials, Provider};

impl RedisBackendBuilder {
    /// Sets the credentials for the sentinels. Defaults to none. The user and the password in the URL are for
    /// the primary.
    ///
    /// An empty user means the default user of the server.
    pub fn sentinel_auth(mut self, user: impl AsRef<str>, password: impl AsRef<str>) -> Self {
        let login = RedisConnectionInfo::default().set_password(password);
        self.servers.sentinel_auth = Some(match user.as_ref() {
            "" => login,
            user => login.set_username(user),
        });
        self
    }

    /// Sets a provider of the user and the password or token, asked for each new connection. Defaults to the login
    /// in the URL.
    ///
    /// It serves credentials that change, such as tokens of AWS IAM or Microsoft Entra. They apply to commands,
    /// subscriptions and all nodes of a cluster. Behind sentinels, they are for the primary. With this setting, a
    /// URL with a password is a [`ConfigError`](crate::manager::ConfigError). For a
    /// [pool](crate::RedisBackend::from_pool), they are for the server of [`notify`](Self::notify), and without it,
    /// [`connect`](Self::connect) returns a [`ConfigError`](crate::manager::ConfigError).
    ///
    /// - The future of the provider must complete within the [`connect_timeout`](Self::connect_timeout), or it is
    ///   dropped. It must not block its thread. A provider of tokens should cache them.
    /// - If the provider fails, or the server rejects the credentials, the provider is asked again with the next
    ///   connection, after a backoff of up to 400 ms, or 1 s after a rejection. For a subscription, the backoff is
    ///   up to 5 s. Until then, callers receive *unavailable*, or *misconfigured* after a rejection.
    /// - The provider's error is a source of errors and appears in logs, so it must contain no secret.
    /// - An open connection stays open after its token has expired, unless the server ends it. Then a new connection
    ///   asks the provider.
    /// - Connections for [`min_replicas`](Self::min_replicas) use the last credentials. If the server rejects
    ///   them, the provider is asked once more.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn token() -> std::io::Result<String> { Ok(String::new()) }
    /// use tower_lock::RedisBackend;
    /// use tower_lock::backend::redis::Credentials;
    ///
    /// let backend = RedisBackend::builder("rediss://locks.internal:6380")
    ///     .credentials(|| async { token().await.map(|token| Credentials::new("locker", token)) })
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn credentials<F, Fut, E>(mut self, provider: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.servers.transport.credentials = Some(Provider::new(provider));
        self
    }

    /// Sets a map from the host and the port that a server reports to those to connect to. Defaults to the
    /// reported ones.
    ///
    /// It serves nodes that report addresses this process cannot reach, as behind Docker, NAT or an SSH tunnel. It
    /// applies to the nodes of a cluster, redirections included, and to the primary that the sentinels name. The
    /// hosts in the URL stay as they are. A node that reports no host has the host of the node that was asked. IPv6
    /// addresses have no brackets. The map must return one address per server, and must not block.
    ///
    /// [`connect`](Self::connect) returns a [`ConfigError`](crate::manager::ConfigError) with a URL of one server or a pool.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), tower_lock::ConnectError> {
    /// use tower_lock::RedisBackend;
    ///
    /// let backend = RedisBackend::builder("redis+cluster://127.0.0.1:7001")
    ///     .address_map(|_host, port| ("127.0.0.1".to_owned(), port))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn address_map<F>(mut self, map: F) -> Self
    where
        F: Fn(&str, u16) -> (String, u16) + Send + Sync + 'static,
    {
        self.servers.transport.address_map = Some(Arc::new(map));
        self
    }

    /// Sets the trusted authorities for `rediss://`, as one or more PEM certificates. Defaults to the public ones
    /// that Mozilla trusts, which these replace.
    ///
    /// They apply to commands, subscriptions, sentinels and all nodes of a cluster. The certificate of a server
    /// must contain its host name or IP address, as in the URL or as a sentinel or a cluster reports it, or the
    /// [`tls_server_name`](Self::tls_server_name).
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_lock::RedisBackend;
    ///
    /// let backend = RedisBackend::builder("rediss://locks.internal:6380")
    ///     .ca_certificate(std::fs::read("ca.pem")?)
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.servers.transport.certificates.ca = Some(pem.into());
        self
    }

    /// Sets the name that the certificate of every server must contain. Defaults to the host of each server, as in
    /// the URL or as a sentinel or a cluster reports it.
    ///
    /// It serves servers at IP addresses with a certificate for a host name. The client also sends it as the server
    /// name (SNI). It applies to commands, subscriptions, sentinels and all nodes of a cluster.
    ///
    /// [`connect`](Self::connect) returns a [`ConfigError`](crate::manager::ConfigError) if it is neither a host name nor an
    /// IP address, or if a URL is not `rediss://`.
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn tls_server_name(mut self, name: impl Into<String>) -> Self {
        self.servers.transport.certificates.server_name = Some(name.into());
        self
    }

    /// Sets the client certificate, followed by its intermediate ones, and its private key, both as PEM. Defaults
    /// to none.
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn client_certificate(
        mut self,
        certificate_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.servers.transport.certificates.client = Some((certificate_pem.into(), key_pem.into()));
        self
    }
}
