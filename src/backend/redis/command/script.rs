//! The Lua scripts.

use std::time::Duration;

use redis::{Arg, Cmd};

use super::names::{Names, RedisName};
use crate::backend::redis::connection::{Called, Request, Resend, Undo};
use crate::backend::redis::notify::Publish;

/// The most keys of one call: Redis executes nothing else during a script.
pub(crate) const MAX_BATCH: usize = 100;

/// Returns a piece of a script.
macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("lua/", $name, ".lua"))
    };
}

/// A call over several slots, which is sent with its source.
pub(crate) const SPAN: &str = lua!("span");

pub(crate) struct Script {
    name: &'static str,
    source: String,
    sha: String,
    resend: Resend,
}

impl Script {
    fn new(name: &'static str, resend: Resend, pieces: &[&str]) -> Self {
        let source = pieces.concat();
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self {
            name,
            source,
            sha,
            resend,
        }
    }

    /// Returns the request of a call with this number of locks, which grants nothing.
    pub(super) fn request<'a>(&self, command: &'a Cmd, locks: usize) -> Request<'a> {
        let script = self.name;
        Request {
            called: Some(Called { script, locks }),
            ..Request::new(command, self.resend)
        }
    }

    /// Returns the request of a call that acquires this number of locks.
    pub(super) fn acquire<'a>(
        &self,
        command: &'a Cmd,
        locks: usize,
        commands: &'a (dyn Fn() -> Vec<Cmd> + Send + Sync),
        limit: Duration,
    ) -> Request<'a> {
        Request {
            undo: Some(Undo { commands, limit }),
            ..self.request(command, locks)
        }
    }

    /// Returns the head of a call with `keys` keys and `args` arguments of `size` bytes in total.
    pub(super) fn evalsha(&self, keys: usize, args: usize, size: usize) -> Cmd {
        let mut command = Cmd::with_capacity(3 + keys + args, size + 64);
        command.arg("EVALSHA").arg(&self.sha).arg(keys);
        command
    }

    /// Returns the call with the source in place of the hash, for a server without the script.
    pub(super) fn eval(&self, call: &Cmd) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.source);
        for argument in call.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }

    /// Returns the head of a call over many keys, with two arguments of `extra` bytes for each.
    pub(super) fn batch<'a>(
        &self,
        keys: impl Iterator<Item = RedisName<'a>> + Clone,
        extra: usize,
    ) -> Cmd {
        let count = keys.clone().count();
        let size: usize = keys.clone().map(|key| key.len() + extra).sum();
        let mut command = self.evalsha(count, 2 * count, size);
        for key in keys {
            command.arg(key);
        }
        command
    }
}

/// The scripts for one kind of messages.
pub(crate) struct Scripts {
    pub(super) acquire: Script,
    pub(super) acquire_all: Script,
    /// An acquire without its counter.
    pub(super) acquire_body: Script,
    /// The counter of such an acquire.
    pub(super) counter: Script,
    pub(super) vote: Script,
    pub(super) vote_shared: Script,
    pub(super) renew: Script,
    pub(super) share: Script,
    /// A shared acquire without its counter and its queue.
    pub(super) share_body: Script,
    pub(super) renew_shared: Script,
    pub(super) release: Script,
    pub(super) contend: Script,
    pub(super) leave: Script,
    pub(super) queue_trial: Script,
    pub(super) release_or_keep: Script,
    pub(super) downgrade: Script,
    /// A downgrade without its counter and its queue.
    pub(super) downgrade_body: Script,
    pub(super) inspect: Script,
    pub(super) force_release: Script,
    /// Begins a quarantine.
    pub(super) prepare: Script,
    /// The length of the pause of all grants after a loss of data.
    pub(super) quarantine: Option<Duration>,
    /// The commands that publish a release.
    pub(super) publish: &'static [&'static str],
}

impl Scripts {
    pub(crate) fn new(names: &Names, publish: Publish, quarantine: Option<Duration>) -> Self {
        use Resend::{Compared, Repeatable};
        const NOTICE: &str = concat!(lua!("started"), lua!("quarantine"));
        let fence = match names.of_redisson {
            true => lua!("fence_of_redisson"),
            false => lua!("fence"),
        };
        let fence_elsewhere = lua!("fence_elsewhere");
        // A vote moves the fencing counter only with a quarantine.
        let (fence_of_vote, guard) = match quarantine {
            None => ("", ""),
            Some(_) => (
                fence,
                concat!(lua!("started"), lua!("quarantine"), lua!("guard")),
            ),
        };
        let (report, publish): (_, &[_]) = match publish {
            Publish::Auto | Publish::Plain => (lua!("publish"), &["PUBLISH"]),
            Publish::Sharded => (lua!("publish_sharded"), &["SPUBLISH"]),
            Publish::Both => (lua!("publish_both"), &["PUBLISH", "SPUBLISH"]),
        };
        let (listeners, wanted) = (lua!("listeners"), lua!("wanted"));
        let queue = &[listeners, lua!("hold_free"), lua!("queue")].concat()[..];
        let reported = &[report, queue].concat()[..];
        let share = &[
            lua!("hold_free"),
            lua!("share"),
            report,
            listeners,
            lua!("queue"),
            wanted,
            lua!("share_later"),
        ]
        .concat()[..];
        let (ended, downgrade) = (lua!("ended"), lua!("downgrade"));
        let repeatable = |name, pieces: &[_]| Script::new(name, Repeatable, pieces);
        let compared = |name, pieces: &[_]| Script::new(name, Compared, pieces);
        Self {
            acquire: repeatable("acquire", &[fence, guard, lua!("acquire")]),
            acquire_all: repeatable("acquire_all", &[fence, lua!("acquire_all")]),
            acquire_body: repeatable("acquire_body", &[fence_elsewhere, lua!("acquire")]),
            counter: repeatable("counter", &[fence, lua!("started"), lua!("counter")]),
            vote: repeatable(
                "vote",
                &[fence_of_vote, guard, lua!("vote_counter"), lua!("vote")],
            ),
            vote_shared: repeatable(
                "vote_shared",
                &[fence_of_vote, guard, lua!("vote_counter"), share],
            ),
            prepare: repeatable("prepare", &[fence, NOTICE, lua!("prepare")]),
            quarantine,
            renew: repeatable("renew", &[lua!("renew")]),
            share: repeatable("share", &[fence, guard, share]),
            share_body: repeatable("share_body", &[fence_elsewhere, share]),
            renew_shared: repeatable("renew_shared", &[reported, wanted, lua!("share_renew")]),
            contend: repeatable(
                "contend",
                &[fence, guard, reported, wanted, lua!("contend")],
            ),
            leave: compared("leave", &[reported, ended, lua!("leave")]),
            queue_trial: repeatable("queue_trial", &[lua!("queue_trial")]),
            release: compared(
                "release",
                &[
                    report,
                    lua!("release_one"),
                    ended,
                    lua!("release"),
                    queue,
                    lua!("release_wanted"),
                ],
            ),
            release_or_keep: compared(
                "release_or_keep",
                &[
                    fence,
                    report,
                    lua!("keep_alone"),
                    queue,
                    lua!("release_or_keep"),
                ],
            ),
            downgrade: repeatable("downgrade", &[fence, reported, downgrade]),
            downgrade_body: repeatable("downgrade_body", &[fence_elsewhere, reported, downgrade]),
            inspect: repeatable("inspect", &[reported, lua!("inspect")]),
            force_release: compared("force_release", &[reported, ended, lua!("force_release")]),
            publish,
        }
    }
}
