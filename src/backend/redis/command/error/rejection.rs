//! What the rejection of a command concerns.

use std::error::Error;

use redis::RedisError;

use super::cause::Cause;
use super::server_error::is_quoting;
use crate::backend::BackendError;

/// The codes of a server that rejects the command for every key.
pub(super) const FOR_ALL_KEYS: [&str; 10] = [
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOAUTH",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "WRONGPASS",
];

/// Returns `true` if the server would reject the same command for any key, and not only for the one that it named.
pub(crate) fn concerns_all_keys(error: &BackendError) -> bool {
    if let Some(Cause::Quarantine(_) | Cause::TooFewReplicas { .. } | Cause::Spread(..)) =
        Cause::behind(error)
    {
        return true;
    }
    let Some((code, details)) = server_error(error) else {
        return false;
    };
    let quotes = |code: &&str| details.contains(&format!("-{code} "));
    // A node without one of the slots serves the others. All versions word a denied command as `run …`.
    (FOR_ALL_KEYS.contains(&code) && !details.contains("slot"))
        || (is_quoting(code) && FOR_ALL_KEYS.iter().any(quotes))
        || details.contains("run this command")
        || details.contains("to run the")
}

/// Returns `true` if the user may not run a command or use a key, or the server does not have the command. Another
/// attempt meets the same, so a caller may remember it.
pub(crate) fn is_denial(error: &BackendError) -> bool {
    server_error(error).is_some_and(|(code, details)| super::server_error::is_denial(code, details))
}

/// Returns `true` if the server rejects only commands that require memory. Releases do not.
pub(crate) fn is_out_of_memory(error: &BackendError) -> bool {
    server_error(error).is_some_and(|(code, details)| {
        code == "OOM" || (is_quoting(code) && details.contains("OOM"))
    })
}

/// Returns the code and the details of the error that the server replied with. Other errors of redis-rs have no code.
pub(super) fn server_error(error: &BackendError) -> Option<(&str, &str)> {
    let error: &RedisError = Error::source(error)?.downcast_ref()?;
    let (code, details) = (error.code(), error.detail());
    Some((code.unwrap_or_default(), details.unwrap_or_default()))
}

/// Returns `true` if a server replied, and its reply is the reason of the error.
pub(crate) fn is_reply(error: &BackendError) -> bool {
    match Cause::behind(error) {
        Some(cause) => cause.is_reply(),
        None => server_error(error).is_some_and(|(code, _)| !code.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::make_extension_error;

    use super::*;
    use crate::backend::BackendErrorKind;
    use crate::backend::redis::command::unavailable;

    fn refused(code: &str, detail: &str) -> BackendError {
        let error = make_extension_error(code.to_owned(), Some(detail.to_owned()));
        BackendError::refused(BackendErrorKind::Unavailable, error)
    }

    #[test]
    fn failures_of_all_keys_are_recognized() {
        for (code, detail) in [
            ("NOREPLICAS", "Not enough good replicas to write."),
            ("OOM", "command not allowed when used memory > 'maxmemory'."),
            ("CLUSTERDOWN", "The cluster is down"),
            // Redis 6.2.
            (
                "@user_script:",
                " 191: -NOREPLICAS Not enough good replicas to write.",
            ),
            (
                "ERR",
                "The user executing the script can't run this command or subcommand",
            ),
            (
                "ERR",
                "ACL failure in script: User u has no permissions to run the 'zadd' command",
            ),
        ] {
            assert!(concerns_all_keys(&refused(code, detail)), "{code} {detail}");
        }
        let pause = unavailable(Cause::Quarantine(Duration::ZERO));
        assert!(concerns_all_keys(&pause));
    }

    #[test]
    fn failures_of_one_key_are_recognized() {
        for (code, detail) in [
            ("NOPERM", "this user has no permissions to access a key"),
            ("CLUSTERDOWN", "Hash slot not served"),
            (
                "ERR",
                "The user executing the script can't access at least one of the keys",
            ),
        ] {
            let error = refused(code, detail);
            assert!(!concerns_all_keys(&error), "{code} {detail}");
        }
    }

    #[test]
    fn only_denials_are_denials() {
        for (code, detail, expected) in [
            ("NOPERM", "this user has no permissions to run 'zadd'", true),
            (
                "ERR",
                "ACL failure in script: User u has no permissions to run the 'zadd' command",
                true,
            ),
            (
                "@user_script:",
                " 54: The user executing the script can't run this command or subcommand",
                true,
            ),
            ("ERR", "Unknown Redis command called from script", true),
            ("NOAUTH", "Authentication required.", false),
            ("WRONGPASS", "invalid username-password pair", false),
            (
                "CROSSSLOT",
                "Keys in request don't hash to the same slot",
                false,
            ),
            ("ERR", "DB index is out of range", false),
            ("ERR", "FENCE the fencing counter a holds", false),
            ("LOADING", "Redis is loading the dataset in memory", false),
            ("OOM", "command not allowed", false),
        ] {
            assert_eq!(
                is_denial(&refused(code, detail)),
                expected,
                "{code} {detail}"
            );
        }
    }

    #[test]
    fn full_memory_is_recognized_in_all_versions() {
        let text = "command not allowed when used memory > 'maxmemory'.";
        assert!(is_out_of_memory(&refused("OOM", text)));
        let quoted = refused("@user_script:", &format!(" 191: -OOM {text}"));
        assert!(is_out_of_memory(&quoted));
        let other = refused("NOREPLICAS", "Not enough good replicas to write.");
        assert!(!is_out_of_memory(&other));
    }
}
