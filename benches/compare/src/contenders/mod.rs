//! The contenders: the locks that the benchmark compares.

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
    RedissonFair,
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
            Self::RedissonFair => "Redisson `RFairLock`",
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
            // Scripts only, as under `herd`: its scripts call what its client sends.
            Self::RedissonFair => sum(&["evalsha", "eval"]),
            Self::Mutex => 0,
        }
    }

    /// What must have run before the first figure counts. A JVM compiles what it runs often.
    pub(crate) fn warm_up(self) -> Duration {
        match self {
            Self::Redisson | Self::RedissonFair => Duration::from_secs(4),
            _ => Duration::from_millis(200),
        }
    }

    /// Whether each manager has tens of threads of its own: many managers are too much for one machine.
    pub(crate) fn is_java(self) -> bool {
        matches!(self, Self::Redisson | Self::RedissonFair)
    }

    /// The program that works for it with so many managers: this one, except where the locks are
    /// Java's. Those have one client in each process.
    pub(crate) fn program(self, managers: usize, url: &str) -> Result<Command, String> {
        match self {
            Self::Redisson => redisson::program(url, "plain"),
            Self::RedissonFair => redisson::program(url, "fair"),
            _ => {
                let (name, managers) = (format!("{self:?}"), managers.to_string());
                Ok(this_program(&["work", &name, &managers, url]))
            }
        }
    }

    /// As that program.
    pub(crate) async fn work(name: &str, managers: &str, url: &str) -> Result<(), Failure> {
        let managers = managers.parse()?;
        let mut named = Self::ALL.into_iter().chain([Self::Mutex]);
        let named = named.find(|it| format!("{it:?}") == name);
        match named.ok_or("no such contender")? {
            Self::Ours => {
                serve(managers, async || {
                    ours::connect(url, ours::Release::Background).await
                })
                .await
            }
            Self::OursAwaited => {
                serve(managers, async || {
                    ours::connect(url, ours::Release::Awaited).await
                })
                .await
            }
            Self::OursBackend => serve(managers, async || ours_backend::connect(url).await).await,
            Self::Bare => {
                serve(managers, async || {
                    bare::connect(url, bare::Token::None).await
                })
                .await
            }
            Self::BareToken => {
                serve(managers, async || {
                    bare::connect(url, bare::Token::Ours).await
                })
                .await
            }
            Self::Checkout => serve(managers, async || checkout::connect(url)).await,
            Self::Rslock => serve(managers, async || rslock::connect(url)).await,
            Self::DistributedLock => {
                serve(managers, async || distributed_lock::connect(url).await).await
            }
            Self::Redisson | Self::RedissonFair => Err("a program of its own".into()),
            Self::Mutex => serve(1, async || Ok(mutex::Mutex::default())).await,
        }
    }
}
