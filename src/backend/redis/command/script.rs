//! The Lua scripts.

use std::time::Duration;

use redis::{Arg, Cmd};

use super::names::{Names, RedisName};
use crate::backend::redis::connection::{Called, Request, Resend, Undo};
use crate::backend::redis::notify::Publish;

/// The most keys of one call: Redis executes nothing else during a script.
pub(crate) const MAX_BATCH: usize = 100;

/// A call over several slots, which is sent with its source.
pub(crate) const SPAN: &str = include_str!("lua/span.lua");

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
        undo: Undo<'a>,
    ) -> Request<'a> {
        Request {
            undo: Some(undo),
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
        let fence = if names.of_redisson {
            include_str!("lua/fence_of_redisson.lua")
        } else {
            include_str!("lua/fence.lua")
        };
        const STARTED: &str = include_str!("lua/started.lua");
        const NOTICE: &str = concat!(
            include_str!("lua/started.lua"),
            include_str!("lua/quarantine.lua")
        );
        const ACQUIRE: &str = include_str!("lua/acquire.lua");
        const VOTE: &str = include_str!("lua/vote.lua");
        const GUARD: &str = include_str!("lua/guard.lua");
        let guard: &[_] = match quarantine {
            None => &[],
            Some(_) => &[NOTICE, GUARD],
        };
        let (acquire, vote): (&[_], &[_]) = match quarantine {
            None => (&[fence, ACQUIRE], &[VOTE]),
            Some(_) => (
                &[fence, NOTICE, GUARD, ACQUIRE],
                &[fence, NOTICE, GUARD, VOTE],
            ),
        };
        let (report, publish): (_, &[_]) = match publish {
            Publish::Auto | Publish::Plain => (include_str!("lua/publish.lua"), &["PUBLISH"]),
            Publish::Sharded => (include_str!("lua/publish_sharded.lua"), &["SPUBLISH"]),
            Publish::Both => (
                include_str!("lua/publish_both.lua"),
                &["PUBLISH", "SPUBLISH"],
            ),
        };
        let listeners = include_str!("lua/listeners.lua");
        const HOLD_FREE: &str = include_str!("lua/hold_free.lua");
        const QUEUE_ALONE: &str = include_str!("lua/queue.lua");
        const QUEUE: &str = concat!(
            include_str!("lua/hold_free.lua"),
            include_str!("lua/queue.lua")
        );
        const WANTED: &str = include_str!("lua/wanted.lua");
        const CONTEND: &str = include_str!("lua/contend.lua");
        const ENDED: &str = include_str!("lua/ended.lua");
        let contend = [
            &[fence],
            guard,
            &[report, listeners, QUEUE, WANTED, CONTEND],
        ]
        .concat();
        const DOWNGRADE: &str = include_str!("lua/downgrade.lua");
        let shared = [
            HOLD_FREE,
            include_str!("lua/share.lua"),
            report,
            listeners,
            QUEUE_ALONE,
            WANTED,
            include_str!("lua/share_later.lua"),
        ];
        let share = [&[fence], guard, &shared].concat();
        let counter = include_str!("lua/vote_counter.lua");
        let vote_shared = [&[fence], guard, &[counter], &shared].concat();
        Self {
            acquire: Script::new("acquire", Repeatable, acquire),
            acquire_all: Script::new(
                "acquire_all",
                Repeatable,
                &[fence, include_str!("lua/acquire_all.lua")],
            ),
            acquire_body: Script::new(
                "acquire_body",
                Repeatable,
                &[include_str!("lua/fence_elsewhere.lua"), ACQUIRE],
            ),
            counter: Script::new(
                "counter",
                Repeatable,
                &[fence, STARTED, include_str!("lua/counter.lua")],
            ),
            vote: Script::new("vote", Repeatable, vote),
            vote_shared: Script::new("vote_shared", Repeatable, &vote_shared),
            prepare: Script::new(
                "prepare",
                Repeatable,
                &[fence, NOTICE, include_str!("lua/prepare.lua")],
            ),
            quarantine,
            renew: Script::new("renew", Repeatable, &[include_str!("lua/renew.lua")]),
            share: Script::new("share", Repeatable, &share),
            share_body: Script::new(
                "share_body",
                Repeatable,
                &[&[include_str!("lua/fence_elsewhere.lua")], &shared[..]].concat(),
            ),
            renew_shared: Script::new(
                "renew_shared",
                Repeatable,
                &[
                    report,
                    listeners,
                    QUEUE,
                    WANTED,
                    include_str!("lua/share_renew.lua"),
                ],
            ),
            contend: Script::new("contend", Repeatable, &contend),
            leave: Script::new(
                "leave",
                Compared,
                &[
                    report,
                    listeners,
                    QUEUE,
                    ENDED,
                    include_str!("lua/leave.lua"),
                ],
            ),
            queue_trial: Script::new(
                "queue_trial",
                Repeatable,
                &[include_str!("lua/queue_trial.lua")],
            ),
            release: Script::new(
                "release",
                Compared,
                &[
                    report,
                    include_str!("lua/release_one.lua"),
                    ENDED,
                    include_str!("lua/release.lua"),
                    listeners,
                    QUEUE,
                    include_str!("lua/release_wanted.lua"),
                ],
            ),
            release_or_keep: Script::new(
                "release_or_keep",
                Compared,
                &[
                    fence,
                    report,
                    listeners,
                    QUEUE,
                    include_str!("lua/release_or_keep.lua"),
                ],
            ),
            downgrade: Script::new(
                "downgrade",
                Repeatable,
                &[fence, report, listeners, QUEUE, DOWNGRADE],
            ),
            downgrade_body: Script::new(
                "downgrade_body",
                Repeatable,
                &[
                    include_str!("lua/fence_elsewhere.lua"),
                    report,
                    listeners,
                    QUEUE,
                    DOWNGRADE,
                ],
            ),
            inspect: Script::new(
                "inspect",
                Repeatable,
                &[report, listeners, QUEUE, include_str!("lua/inspect.lua")],
            ),
            force_release: Script::new(
                "force_release",
                Compared,
                &[
                    report,
                    listeners,
                    QUEUE,
                    ENDED,
                    include_str!("lua/force_release.lua"),
                ],
            ),
            publish,
        }
    }
}
