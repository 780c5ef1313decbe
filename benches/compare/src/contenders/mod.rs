//! Whose locks are compared.

pub(crate) mod bare;
mod checkout;
mod distributed_lock;
mod mutex;
mod ours;
mod ours_backend;
mod redisson;
pub(crate) mod rslock;
pub(crate) mod together;

use std::process::Command;
use std::time::Duration;

use crate::child::this_program;
use crate::work::{Failure, serve};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contender {
    Ours,
    OursAwaited,
    OursBackend,
    Bare,
    BareToken,
    Checkout,
    Rslock,
    DistributedLock,
    Redisson,
    Mutex,
}

impl Contender {
    pub(crate) const ALL: [Self; 9] = [
        Self::Ours,
        Self::OursAwaited,
        Self::OursBackend,
        Self::Bare,
        Self::BareToken,
        Self::Checkout,
        Self::Rslock,
        Self::DistributedLock,
        Self::Redisson,
    ];

    /// Where keys are contended: tower-lock once, as the layer uses it.
    pub(crate) const WAITING: [Self; 6] = [
        Self::Ours,
        Self::Bare,
        Self::Checkout,
        Self::Rslock,
        Self::DistributedLock,
        Self::Redisson,
    ];

    /// The same, and what this machine can do where one process is alone with one key.
    pub(crate) const IN_ONE_PROCESS: [Self; 7] = [
        Self::Ours,
        Self::Bare,
        Self::Checkout,
        Self::Rslock,
        Self::DistributedLock,
        Self::Redisson,
        Self::Mutex,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "tower-lock",
            Self::OursAwaited => "tower-lock, release awaited",
            Self::OursBackend => "tower-lock's `RedisBackend` alone",
            Self::Bare => "bare `EVALSHA`",
            Self::BareToken => "bare `EVALSHA`, with the token",
            Self::Checkout => "bare, a checkout per command",
            Self::Rslock => "rslock",
            Self::DistributedLock => "distributed-lock",
            Self::Redisson => "Redisson `RLock`",
            Self::Mutex => "`tokio::sync::Mutex`",
        }
    }

    /// How many commands its clients have sent, from how often Redis has run each. What a script
    /// calls is counted there as well, so these are commands that its scripts do not call.
    pub(crate) fn sent(self, calls: impl Fn(&str) -> u64) -> u64 {
        let sum = |commands: &[&str]| commands.iter().map(|name| calls(name)).sum::<u64>();
        match self {
            Self::Ours | Self::OursAwaited | Self::OursBackend => {
                sum(&["evalsha", "eval", "subscribe", "unsubscribe"])
            }
            Self::Bare | Self::BareToken => calls("evalsha"),
            Self::Checkout => sum(&["evalsha", "ping", "unwatch"]),
            Self::Rslock => sum(&["set", "evalsha"]),
            Self::DistributedLock => sum(&["set", "eval"]),
            // The script of a release deletes the lock and publishes that, both once; then the
            // client deletes what kept the answer for a second try.
            Self::Redisson => {
                sum(&["evalsha", "eval", "subscribe", "unsubscribe", "ping", "del"])
                    - calls("publish")
            }
            Self::Mutex => 0,
        }
    }

    /// What must have run before the first figure counts. A JVM compiles what it runs often.
    pub(crate) fn warm_up(self) -> Duration {
        match self {
            Self::Redisson => Duration::from_secs(4),
            _ => Duration::from_millis(200),
        }
    }

    /// The program that works for it: this one, except where the locks are Java's.
    pub(crate) fn program(self, url: &str) -> Result<Command, String> {
        if self == Self::Redisson {
            return redisson::program(url);
        }
        Ok(this_program(&["work", &format!("{self:?}"), url]))
    }

    /// As that program.
    pub(crate) async fn work(name: &str, url: &str) -> Result<(), Failure> {
        let mut named = Self::ALL.into_iter().chain([Self::Mutex]);
        let named = named.find(|it| format!("{it:?}") == name);
        match named.ok_or("no such contender")? {
            Self::Ours => serve(ours::connect(url, ours::Release::Background).await?).await,
            Self::OursAwaited => serve(ours::connect(url, ours::Release::Awaited).await?).await,
            Self::OursBackend => serve(ours_backend::connect(url).await?).await,
            Self::Bare => serve(bare::connect(url, bare::Token::None).await?).await,
            Self::BareToken => serve(bare::connect(url, bare::Token::Ours).await?).await,
            Self::Checkout => serve(checkout::connect(url)?).await,
            Self::Rslock => serve(rslock::connect(url)?).await,
            Self::DistributedLock => serve(distributed_lock::connect(url).await?).await,
            Self::Redisson => Err("a program of its own".into()),
            Self::Mutex => serve(mutex::Mutex::default()).await,
        }
    }
}
