//! From a URL to where and how to connect.

use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::ConfigError;

/// What a URL says. Holds the password: no `Debug`.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) info: ConnectionInfo,
    /// Host and port, or the path of the socket.
    pub(super) address: String,
}

impl Target {
    /// Reads the URL of the setting `field`. No error repeats any part of it but the scheme.
    pub(super) fn parse(
        field: &'static str,
        url: &str,
        user_timeout: Duration,
    ) -> Result<Self, ConfigError> {
        let invalid = |problem: &str| ConfigError::new(field, problem);
        let url = url::Url::parse(url).map_err(|_| invalid("not a URL"))?;
        match url.scheme() {
            "redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix" => {}
            "rediss" | "valkeys" if cfg!(feature = "redis-tls") => {
                if url.fragment().is_some() {
                    return Err(invalid("unverified TLS is not supported"));
                }
            }
            "rediss" | "valkeys" => {
                return Err(invalid("TLS needs the feature `redis-tls`"));
            }
            scheme @ ("redis+sentinel" | "redis+cluster") => {
                let problem = format!("`{scheme}` is not supported by this build");
                return Err(ConfigError::new(field, problem));
            }
            scheme => {
                let problem =
                    format!("`{scheme}` is not supported: use `redis`, `rediss` or `redis+unix`");
                return Err(ConfigError::new(field, problem));
            }
        }
        let info = url
            .into_connection_info()
            .map_err(|_| invalid("host, path, database or protocol cannot be used"))?;
        let address = address_of(info.addr());
        let info = info.set_tcp_settings(tcp_settings(user_timeout));
        Ok(Self { info, address })
    }
}

fn address_of(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            if host.contains(':') {
                format!("[{host}]:{port}")
            } else {
                format!("{host}:{port}")
            }
        }
        ConnectionAddr::Unix(path) => path.display().to_string(),
        // `non_exhaustive`, and nothing else comes out of a URL.
        _ => "the server".to_owned(),
    }
}

/// deadpool-redis' own configuration drops these, hence the manager built from `ConnectionInfo`.
fn tcp_settings(user_timeout: Duration) -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5));
    let settings = TcpSettings::default()
        // A lock is one small packet and an answer: never wait for a second packet to fill up.
        .set_nodelay(true)
        .set_keepalive(keepalive)
        // Close means reset. An acquire in the send buffer of a connection that was given up would
        // otherwise still be delivered, long after its replacement released the key.
        .set_linger_time(Duration::ZERO);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(user_timeout);
    #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
    let _unused = user_timeout;
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Target, ConfigError> {
        Target::parse("url", url, Duration::from_secs(5))
    }

    #[test]
    fn addresses_name_host_and_port_or_the_path() {
        for (url, address) in [
            ("redis://u:p@example.com", "example.com:6379"),
            ("redis://[::1]:7/3", "[::1]:7"),
            (
                "redis+unix:///run/redis.sock?db=2&user=u&pass=p",
                "/run/redis.sock",
            ),
        ] {
            assert_eq!(parse(url).map_err(drop).unwrap().address, address);
        }
    }

    #[test]
    fn user_password_and_database_are_read() {
        for url in [
            "redis://u:p%40@h/2",
            "redis+unix:///s?db=2&user=u&pass=p%40",
        ] {
            let target = parse(url).map_err(drop).unwrap();
            let settings = target.info.redis_settings();
            assert_eq!(settings.db(), 2);
            assert_eq!(settings.username(), Some("u"));
            assert_eq!(settings.password(), Some("p@"));
        }
    }

    #[test]
    fn errors_say_what_helps_and_never_repeat_the_url() {
        for (url, hint) in [
            (
                "redis+sentinel://u:hunter2@h/service",
                "not supported by this build",
            ),
            ("redis+cluster://u:hunter2@h", "not supported by this build"),
            ("http://u:hunter2@h", "use `redis`"),
            ("redis://u:hunter2@h/hunter2", "cannot be used"),
            ("hunter2", "not a URL"),
        ] {
            let error = parse(url).err().unwrap();
            assert_eq!(error.field(), "url");
            assert!(error.to_string().contains(hint), "{error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
    }

    #[test]
    #[cfg(not(feature = "redis-tls"))]
    fn without_the_feature_tls_names_the_feature() {
        let error = parse("rediss://h").err().unwrap();
        assert!(error.to_string().contains("redis-tls"));
    }
}
