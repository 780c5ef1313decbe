//! The prefix of names, as a parameter of a URL.

use percent_encoding::percent_decode_str;

use crate::ConfigError;

/// Splits `prefix=…` off the parameters of a URL: all other parts are about the servers.
pub(super) fn split(url: &str) -> (String, Result<Option<String>, ConfigError>) {
    // An `@` is in a login whose `?` is not encoded, which is an error of its own.
    let Some((servers, query)) = url.split_once('?').filter(|it| !it.1.contains('@')) else {
        return (url.to_owned(), Ok(None));
    };
    let is_prefix = |pair: &&str| pair.starts_with("prefix=");
    let (prefixes, others): (Vec<_>, Vec<_>) = query.split('&').partition(is_prefix);
    let prefix = match prefixes[..] {
        [] => return (url.to_owned(), Ok(None)),
        [pair] => {
            let value = pair.trim_start_matches("prefix=");
            let decoded = percent_decode_str(value).decode_utf8();
            let decoded = decoded.map(|prefix| Some(prefix.into_owned()));
            decoded.map_err(|_| ConfigError::new("url", "the prefix is not UTF-8"))
        }
        _ => Err(ConfigError::new("url", "a parameter is given twice")),
    };
    let url = match others[..] {
        [] => servers.to_owned(),
        _ => format!("{servers}?{}", others.join("&")),
    };
    (url, prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_is_split_off_url() {
        for (url, servers, prefix) in [
            ("redis://h", "redis://h", None),
            ("redis://h?prefix=a:", "redis://h", Some("a:")),
            ("redis://h?prefix=", "redis://h", Some("")),
            (
                "redis://h/1?protocol=2&prefix=a%3Ab",
                "redis://h/1?protocol=2",
                Some("a:b"),
            ),
            (
                "redis+sentinel://a,b/s?prefix=a",
                "redis+sentinel://a,b/s",
                Some("a"),
            ),
            (
                "redis+unix:///s?db=1&prefix=a&user=u",
                "redis+unix:///s?db=1&user=u",
                Some("a"),
            ),
            ("redis://h?prefixes=a", "redis://h?prefixes=a", None),
            ("redis://u:p?prefix=a@h", "redis://u:p?prefix=a@h", None),
        ] {
            let (left, found) = split(url);
            assert_eq!(left, servers, "{url}");
            let found = found.expect("a valid prefix");
            assert_eq!(found.as_deref(), prefix, "{url}");
        }
        for url in ["redis://h?prefix=a&prefix=a", "redis://h?prefix=%FF"] {
            assert!(split(url).1.is_err(), "{url}");
        }
    }
}
