//! The values that must not be shown, and the search for them.

use std::any::type_name;
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Debug;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tower_lock::backend::redis::RedisBackendBuilder;
use tower_lock::{LockManager, RedisBackend};

use crate::support::engine::PATIENCE;
use crate::support::exports;
use crate::support::redis_server::RedisServer;

pub(crate) const USER: &str = "wombat";
/// Words with characters between them that have a meaning in a URL. Each word alone is a leak.
pub(crate) const PASSWORD: &str = "quokka/zebra?gecko#lemur@panda:koala%otter";
pub(crate) const KEY: &str = "narwhal";

pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Returns a URL with the user and the password.
pub(crate) fn with_login(url: &str) -> String {
    url.replace("://", &format!("://{USER}:{}@", encoded(PASSWORD)))
}

/// Creates a client with both, and with long timeouts for a busy machine.
pub(crate) fn at(url: &str) -> RedisBackendBuilder {
    let builder = RedisBackend::builder(with_login(url)).connect_timeout(PATIENCE);
    builder.response_timeout(PATIENCE)
}

/// Creates a user with all permissions.
pub(crate) fn admit(server: &RedisServer) {
    let password = format!(">{PASSWORD}");
    server.cli(&["ACL", "SETUSER", USER, "on", &password, "~*", "&*", "+@all"]);
}

/// Returns the part of a manager's owners and leases that identifies the manager.
pub(crate) fn identity(locks: &LockManager) -> String {
    let owner = locks.new_owner().to_string();
    owner.split(':').next().unwrap().to_owned()
}

pub(crate) fn assert_no_login(text: &str) {
    let passwords = exports::words(PASSWORD);
    for secret in passwords.chain([USER]) {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}

/// A search that records the searched types.
#[derive(Default)]
pub(crate) struct Canary {
    pub(crate) owners: Vec<String>,
    seen: BTreeSet<String>,
}

impl Canary {
    pub(crate) fn of(locks: &[&LockManager]) -> Self {
        Self {
            owners: locks.iter().copied().map(identity).collect(),
            seen: BTreeSet::new(),
        }
    }

    /// Searches a text about a lock, which may contain the key and its owner. Returns the text.
    pub(crate) fn open<T: Debug>(&mut self, value: &T) -> String {
        let names = exports::words(type_name::<T>());
        self.seen.extend(names.map(ToOwned::to_owned));
        let text = format!("{value:?} {value:#?}");
        assert_no_login(&text);
        text
    }

    /// Searches a text that must contain no secret, key or owner.
    pub(crate) fn closed<T: Debug>(&mut self, value: &T) {
        let text = self.open(value);
        self.silent(&text);
    }

    /// Searches an error and all its causes, in all forms.
    pub(crate) fn error<E: Error + 'static>(&mut self, error: &E) {
        self.closed(error);
        let mut cause = Some(error as &(dyn Error + 'static));
        while let Some(error) = cause {
            self.silent(&format!("{error} {error:?} {error:#?}"));
            cause = error.source();
        }
    }

    /// Searches a text that must contain no key and no owner.
    pub(crate) fn silent(&self, text: &str) {
        assert_no_login(text);
        for secret in self.owners.iter().map(String::as_str).chain([KEY]) {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }

    /// Returns the public types that were not searched.
    pub(crate) fn unseen(&self) -> Vec<&'static str> {
        let types = exports::types().into_iter();
        types.filter(|name| !self.seen.contains(*name)).collect()
    }
}
