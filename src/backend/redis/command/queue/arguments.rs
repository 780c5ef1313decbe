//! The arguments that the calls about a queue share.

use redis::Cmd;

use crate::backend::redis::command::call::{Calls, KeyRoute};
use crate::backend::redis::command::error::CommandError;
use crate::backend::redis::command::names::RedisName;
use crate::backend::redis::command::script::Script;
use crate::backend::redis::command::send::{CommandReply, call};
use crate::backend::redis::topology::Route;

/// What a count of subscribers includes, as `blind` in `queue.lua`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    All,
    /// The subscribers of this crate. Others may be at nodes that the node of the slot does not count.
    Ours = 1,
    Nothing,
}

impl Calls {
    fn counted(&self, route: &Route) -> Counted {
        match route.slot() {
            None => Counted::All,
            Some(_) if !route.is_in_cluster() => Counted::Nothing,
            Some(_) if self.scripts.publish.contains(&"PUBLISH") => Counted::Ours,
            Some(_) => Counted::All,
        }
    }

    /// Returns `true` if the node of a route counts all subscribers.
    pub(crate) fn counts_all(&self, route: &Route) -> bool {
        self.counted(route) == Counted::All
    }

    /// Returns the name of a queue that this user may use.
    pub(super) fn queue_of<'a>(&self, at: KeyRoute<'a>) -> Option<RedisName<'a>> {
        self.are_queues_allowed().then(|| at.queue())
    }

    /// Calls a script with the queue of the key among its keys, and without it if the server rejects that.
    pub(super) async fn call_with_queue(
        &self,
        script: &Script,
        at: KeyRoute<'_>,
        command: impl Fn(Option<RedisName<'_>>) -> Cmd,
    ) -> Result<CommandReply, CommandError> {
        match call(script, at.route, &command(self.queue_of(at))).await {
            Err(error) if error.excludes_queue() => call(script, at.route, &command(None)).await,
            reply => reply,
        }
    }

    /// Returns the argument for an unusual count. The usual release is shorter without.
    pub(in crate::backend::redis::command) fn blind(&self, route: &Route) -> Option<u8> {
        let counted = self.counted(route);
        (counted != Counted::All).then_some(counted as u8)
    }
}

pub(super) fn kind(listens: bool) -> &'static str {
    match listens {
        true => "!",
        false => "?",
    }
}
