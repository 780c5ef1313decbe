//! Parsing of URLs.

use std::collections::HashSet;

use redis::IntoConnectionInfo;

use super::target::{Target, Transport, newest};
use crate::ConfigError;

/// What a URL names.
pub(crate) enum Targets {
    Server(Box<Target>),
    /// The primary of a service, whose address the sentinels report.
    Sentinel {
        sentinels: Vec<Target>,
        service: String,
    },
    /// The cluster to which these nodes belong.
    Cluster {
        seeds: Vec<Target>,
    },
}

impl Targets {
    /// Parses the URL in the setting `field`. Errors repeat no part of it.
    pub(crate) fn parse(
        field: &'static str,
        url: &str,
        transport: &Transport,
    ) -> Result<Self, ConfigError> {
        let invalid = |problem: &str| ConfigError::new(field, problem);
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid(NO_SCHEME))?;
        let scheme = scheme.to_ascii_lowercase();
        let Some((scheme @ ("redis" | "rediss" | "valkey" | "valkeys"), kind)) =
            scheme.split_once('+').filter(|(_, kind)| *kind != "unix")
        else {
            let target = Target::parse(field, url, transport)?;
            return Ok(Self::Server(Box::new(target)));
        };
        // The `url` crate does not accept several hosts.
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        if rest.contains("://") {
            return Err(invalid("one scheme, in front, is for all hosts"));
        }
        if path.contains('@') {
            return Err(invalid(UNENCODED));
        }
        if login.is_some_and(|it| it.contains(['@', ','])) {
            return Err(invalid(ONE_LOGIN));
        }
        let login = login.map(|it| format!("{it}@")).unwrap_or_default();
        let targets = |database: &str, default_port: &str| {
            let targets = hosts.split(',').map(str::trim).map(|host| {
                if host.is_empty() || host.contains(['?', '#']) {
                    return Err(invalid("the hosts are not a list such as `a:6379,b:6379`"));
                }
                // The brackets of an IPv6 address enclose colons.
                let has_port = host.rsplit(']').next().is_some_and(|it| it.contains(':'));
                let port = if has_port { "" } else { default_port };
                Target::parse(
                    field,
                    &format!("{scheme}://{login}{host}{port}/{database}"),
                    transport,
                )
            });
            targets.collect::<Result<Vec<_>, _>>()
        };
        match kind {
            "sentinel" => {
                let (service, database) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() || service.starts_with(['?', '#']) {
                    return Err(invalid(
                        "the name of the service is missing: `redis+sentinel://a:26379,b:26379/service`",
                    ));
                }
                if service.contains(['?', '#']) {
                    return Err(invalid("only a database may follow the service"));
                }
                let sentinels = targets(database, SENTINEL_PORT)?;
                let mut addresses = HashSet::new();
                if !sentinels.iter().all(|it| addresses.insert(&it.address)) {
                    return Err(invalid("a sentinel is named twice: each has one vote"));
                }
                let service = percent_encoding::percent_decode_str(service)
                    .decode_utf8()
                    .map_err(|_| invalid("the name of the service is not UTF-8"))?
                    .into_owned();
                Ok(Self::Sentinel { sentinels, service })
            }
            "cluster" if path.is_empty() => Ok(Self::Cluster {
                seeds: targets("", "")?,
            }),
            "cluster" => Err(invalid(
                "a cluster has no databases: nothing may follow the hosts",
            )),
            _ => Err(invalid(SCHEMES)),
        }
    }
}

/// All schemes, after a problem. `valkey` in place of `redis` is an alias.
macro_rules! use_a_scheme {
    ($problem:literal) => {
        concat!(
            $problem,
            ": use `redis://`, `redis+unix://`, `redis+sentinel://` or `redis+cluster://`, or over TLS \
            `rediss://`, `rediss+sentinel://` or `rediss+cluster://`; `memory://` is for \
            `LockManager::connect`, as is `postgres://` with the feature `postgres`"
        )
    };
}
const NO_SCHEME: &str = use_a_scheme!("URL without a scheme");
/// The text does not repeat the scheme: in a URL without one, the user takes its place.
const SCHEMES: &str = use_a_scheme!("scheme is not supported");
/// A reserved character ends the password early, and the rest is parsed as the port.
const NO_URL: &str = "not a URL; in a user or a password, `#`, `/`, `?` and `@` must be \
    percent-encoded, and a port is at most 65535";
/// The part before the character would be parsed as the host, and logged as the address.
const UNENCODED: &str =
    "an `@` behind the host: `/`, `?`, `#` and `%` in a user or a password must be percent-encoded";
/// With one login per host, only the last would count.
const ONE_LOGIN: &str =
    "one login, in front, is for all hosts; in it, `@` and `,` must be percent-encoded";

const SOCKET_PARAMETERS: &str = "the parameters of a socket are `db`, `user`, `pass` and `protocol`, each with `=` and a value, and `prefix`";
const HOST_PARAMETERS: &str = "`protocol` and `prefix` are the only parameters: the database goes behind the \
    host, and the login in front of it: `redis://user:password@host/1`";

/// The default port of a sentinel. All other servers have 6379.
const SENTINEL_PORT: &str = ":26379";

impl Target {
    /// Parses the URL of one server.
    pub(crate) fn parse(
        field: &'static str,
        url: &str,
        transport: &Transport,
    ) -> Result<Self, ConfigError> {
        let invalid = |problem: &str| ConfigError::new(field, problem);
        // A part of the login may look like the end of the hosts.
        let hosts = url.split_once("://").map_or("", |(_, rest)| rest);
        let hosts = hosts.rsplit('@').next().unwrap_or_default();
        let hosts = hosts.split(['/', '?', '#']).next().unwrap_or_default();
        if hosts.contains(',') {
            return Err(invalid(
                "several hosts are for `redis+sentinel` and `redis+cluster`",
            ));
        }
        let url = url::Url::parse(url).map_err(|_| invalid(NO_URL))?;
        if url.has_host() && url[url::Position::BeforePath..].contains('@') {
            return Err(invalid(UNENCODED));
        }
        let is_socket = url.host().is_none();
        if !url.username().is_empty() && url.password().is_none() {
            // redis-rs would drop the user and log in as the default user.
            return Err(invalid(
                "a user needs a password: `redis://user:password@host`",
            ));
        }
        // redis-rs ignores every parameter that it does not know.
        let mut names = HashSet::new();
        for (name, _) in url.query_pairs() {
            match &*name {
                "protocol" => {}
                "db" | "user" | "pass" if is_socket => {}
                _ if is_socket => return Err(invalid(SOCKET_PARAMETERS)),
                _ => return Err(invalid(HOST_PARAMETERS)),
            }
            if !names.insert(name) {
                return Err(invalid("a parameter is given twice"));
            }
        }
        if names.contains("user") && !names.contains("pass") {
            return Err(invalid(
                "a user needs a password: `redis+unix:///path?user=…&pass=…`",
            ));
        }
        match url.scheme() {
            "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster" => {
                return Err(invalid("one server is asked for here"));
            }
            "redis" | "valkey" | "redis+unix" | "valkey+unix" | "unix" => {
                if url.fragment().is_some() {
                    return Err(invalid("a `#` must be percent-encoded"));
                }
            }
            "rediss" | "valkeys" if cfg!(feature = "redis-tls") => {
                if url.fragment().is_some() {
                    return Err(invalid("unverified TLS is not supported"));
                }
            }
            "rediss" | "valkeys" => {
                return Err(invalid("TLS needs the feature `redis-tls`"));
            }
            _ => return Err(invalid(SCHEMES)),
        }
        let is_newest = !names.contains("protocol");
        drop(names);
        let info = url
            .into_connection_info()
            .map_err(|_| invalid("host, path, database or protocol cannot be used"))?;
        let info = match is_newest {
            true => newest(info),
            false => info,
        };
        #[cfg(feature = "redis-tls")]
        let info = transport.certificates.apply(field, info)?;
        if transport.credentials.is_some() && info.redis_settings().password().is_some() {
            let problem = format!("the URL in `{field}` has a password");
            return Err(ConfigError::new("credentials", problem));
        }
        Ok(Self::new(info, transport))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(url: &str) -> Result<Targets, ConfigError> {
        Targets::parse("url", url, &Transport::default())
    }

    fn parse(url: &str) -> Result<Target, ConfigError> {
        Target::parse("url", url, &Transport::default())
    }

    #[test]
    fn address_is_host_and_port_or_path() {
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
    fn url_contains_login_and_database() {
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
    fn error_has_hint_without_url() {
        for (url, hint) in [
            ("redis+sentinel://u:hunter2@h", "name of the service"),
            (
                "redis+sentinel://u:hunter2@h/?hunter2",
                "name of the service",
            ),
            ("redis://hunter2#@h", "percent-encoded"),
            ("redis://u:hunter2#@h", "percent-encoded"),
            ("redis://u:hunter2/2@h", "percent-encoded"),
            ("redis://u:hunter2@h:65536", "65535"),
            ("redis://u:1234?hunter2@h", "percent-encoded"),
            ("redis+sentinel://u:1234/hunter2@h/s", "percent-encoded"),
            ("redis+sentinel://u:1234#hunter2@h/s", "percent-encoded"),
            ("redis+cluster://hunter2?@h", "percent-encoded"),
            ("redis+sentinel://u:hunter2@/service", "hosts"),
            ("redis+sentinel://u:hunter2@h,,i/service", "hosts"),
            ("redis+sentinel://u:hunter2@h,i,h:26379/s", "named twice"),
            ("redis+sentinel://u:hunter2@h,i?hunter2/service", "hosts"),
            ("redis+sentinel://u:hunter2@h:hunter2/service", "not a URL"),
            (
                "redis+sentinel://u:hunter2/2@h:1/service",
                "percent-encoded",
            ),
            ("redis+sentinel://u:hunter2@h/%ff", "UTF-8"),
            (
                "redis+sentinel://u:hunter2@h/service/hunter2",
                "cannot be used",
            ),
            ("redis+sentinel://redis://u:hunter2@h/service", "one scheme"),
            ("redis+cluster://u:hunter2@h,redis://hunter2", "one scheme"),
            ("redis+cluster://u:hunter2@h:hunter2", "not a URL"),
            ("redis+cluster://u:hunter2@h/1", "no databases"),
            ("redis+cluster://u:hunter2/a@h", "percent-encoded"),
            ("redis+cluster://u:hunter2@h,u:hunter2@i", "one login"),
            ("redis+cluster://h,u:hunter2@i", "one login"),
            ("redis+sentinel://u:hunter2@h,u:hunter2@i/s", "one login"),
            ("redis+sentinel://h/s?hunter2=1", "only a database"),
            ("redis://u:hunter2@h:1,i:2", "several hosts"),
            ("redis://u:hunter2,/2@h", "percent-encoded"),
            ("redis+hunter2://u:hunter2@h", "not supported: use `redis:"),
            ("hunter2+unix://u:hunter2@h", "not supported: use `redis:"),
            ("http://u:hunter2@h", "not supported: use `redis:"),
            ("hunter2://h", "not supported: use `redis:"),
            ("memory://", "`memory://` is for `LockManager::connect`"),
            ("postgres://host/shop", "`postgres://` with the feature"),
            ("redis://hunter2@h", "needs a password"),
            ("redis+cluster://hunter2@h", "needs a password"),
            ("redis://h?db=hunter2", "behind the host"),
            ("redis://hunter2,h", "several hosts"),
            ("redis://u:hunter2@h/hunter2", "cannot be used"),
            ("", "without a scheme: use `redis:"),
            ("hunter2", "without a scheme: use `redis:"),
            ("h:6379", "without a scheme: use `redis:"),
            ("redis:hunter2@h:6379", "without a scheme: use `redis:"),
            ("://hunter2", "not a URL"),
        ] {
            let error = targets(url).err().unwrap();
            assert_eq!(error.field(), "url");
            assert!(error.to_string().contains(hint), "{error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
    }

    #[test]
    fn unknown_or_mistyped_parameter_is_rejected() {
        for (url, hint) in [
            ("redis+unix:///s?user=hunter2", "needs a password"),
            ("redis+unix:///s?user=u&password=hunter2", "`pass`"),
            ("redis+unix:///s?hunter2", "`pass`"),
            ("redis+unix:///s?DB=2", "`pass`"),
            ("redis+unix:///s?db=1&db=2", "twice"),
            ("redis+unix:///s?db=hunter2", "cannot be used"),
            ("redis+unix:///s?protocol=hunter2", "cannot be used"),
            ("redis+unix:///s#hunter2", "percent-encoded"),
            ("redis://h?protocol=hunter2", "cannot be used"),
            ("redis://h?protocoll=2", "only parameter"),
            ("redis://h?pass=hunter2", "only parameter"),
            ("redis://h?protocol=2&protocol=3", "twice"),
            ("redis://h/1#hunter2", "percent-encoded"),
            ("redis+cluster://h?pass=hunter2", "the hosts are not a list"),
            (
                "redis+sentinel://h/service?protocoll=hunter2",
                "only a database",
            ),
        ] {
            let error = targets(url).err().unwrap_or_else(|| panic!("{url}"));
            assert!(error.to_string().contains(hint), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
        for url in [
            "redis+unix:///s",
            "redis+unix:///s?pass=p&protocol=resp3",
            "redis://h/1?protocol=2",
        ] {
            assert!(targets(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn hosts_share_login_and_database() {
        let url = "redis+sentinel://u:p%40@a:1, b ,[::1]:3,[::2]/my%20service/2";
        let Ok(Targets::Sentinel { sentinels, service }) = targets(url) else {
            panic!("sentinels");
        };
        assert_eq!(service, "my service");
        let addresses: Vec<_> = sentinels.iter().map(|it| &*it.address).collect();
        assert_eq!(addresses, ["a:1", "b:26379", "[::1]:3", "[::2]:26379"]);
        let primary = sentinels[2].at("c", 4);
        assert_eq!(primary.address, "c:4");
        assert_eq!(primary.info.redis_settings().password(), Some("p@"));
        assert_eq!(primary.info.redis_settings().db(), 2);
        let Ok(Targets::Cluster { seeds }) = targets("redis+cluster://a:1,b") else {
            panic!("a cluster");
        };
        let addresses: Vec<_> = seeds.iter().map(|it| &*it.address).collect();
        assert_eq!(addresses, ["a:1", "b:6379"]);
    }

    #[test]
    fn single_server_rejects_list_of_hosts() {
        let error = parse("redis+sentinel://h/service").err().unwrap();
        assert!(error.to_string().contains("one server"), "{error}");
        assert!(targets("REDIS+Cluster://h").is_ok());
    }

    #[test]
    #[cfg(not(feature = "redis-tls"))]
    fn tls_without_feature_names_feature() {
        let error = parse("rediss://h").err().unwrap();
        assert!(error.to_string().contains("redis-tls"));
    }
}
