//! The scripts that are compared.

use redis::{Cmd, Connection, cmd};

/// A release script.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// The one of tower-lock.
    Queue,
    /// The one before tower-lock had a queue.
    Before,
}

impl Format {
    pub(super) const ALL: [Self; 2] = [Self::Queue, Self::Before];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Queue => "tower-lock",
            Self::Before => "its script before the queue",
        }
    }

    fn source(self) -> &'static str {
        match self {
            Self::Queue => concat!(
                include_str!("../../../../../src/backend/redis/command/lua/publish.lua"),
                include_str!("../../../../../src/backend/redis/command/lua/release_one.lua"),
                include_str!("../../../../../src/backend/redis/command/lua/ended.lua"),
                include_str!("../../../../../src/backend/redis/command/lua/release.lua"),
                include_str!("../../../../../src/backend/redis/command/lua/listeners.lua"),
                include_str!("../../../../../src/backend/redis/command/lua/hold_free.lua"),
                include_str!("../../../../../src/backend/redis/command/lua/queue.lua"),
                include_str!("../../../../../src/backend/redis/command/lua/release_wanted.lua"),
            ),
            Self::Before => include_str!("before.lua"),
        }
    }

    /// Returns `true` if a client has loaded this script.
    pub(super) fn is_known(self, connection: &mut Connection) -> Result<bool, String> {
        let hash = redis::Script::new(self.source()).get_hash().to_owned();
        let known = cmd("SCRIPT").arg("EXISTS").arg(hash).query(connection);
        let [known]: [bool; 1] = known.map_err(|error| error.to_string())?;
        Ok(known)
    }

    /// Loads the script. Returns the call that releases leases of these names, with one lease id for all.
    pub(super) fn release(
        self,
        connection: &mut Connection,
        lease: &str,
        names: &[String],
    ) -> Result<Cmd, String> {
        let mut call = load(connection, self.source())?;
        let has_queue = self == Self::Queue;
        let keys = names.len() * if has_queue { 2 } else { 1 };
        call.arg(keys).arg(names);
        if has_queue {
            for name in names {
                call.arg(format!("lock:{{{name}}}%queue"));
            }
        }
        for name in names {
            call.arg(lease);
            call.arg(format!("redisson_lock__channel:{{{name}}}"));
        }
        Ok(call)
    }
}

/// Loads a script, and returns the beginning of its call.
pub(super) fn load(connection: &mut Connection, source: &str) -> Result<Cmd, String> {
    let hash = cmd("SCRIPT").arg("LOAD").arg(source).query(connection);
    let hash: String = hash.map_err(|error| error.to_string())?;
    let mut call = cmd("EVALSHA");
    call.arg(hash);
    Ok(call)
}
