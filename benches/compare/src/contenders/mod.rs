//! The contenders: the locks that the benchmark compares.

pub(crate) mod bare;
mod checkout;
mod counted;
mod distributed_lock;
mod distributed_modes;
mod golocks;
mod mutex;
mod ours;
mod ours_backend;
mod redisson;
pub(crate) mod rslock;
mod semaphore;
pub(crate) mod set;
pub(crate) mod together;

use std::process::Command;
use std::time::Duration;

use crate::child::this_program;
use crate::work::{Failure, serve};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contender {
    Ours,
    OursAwaited,
    OursKept,
    OursInMemory,
    OursBackend,
    Bare,
    BareBehind,
    BareToken,
    Checkout,
    Rslock,
    DistributedLock,
    Redisson,
    RedissonFair,
    Rueidislock,
    Redsync,
    Mutex,
    OursPermits,
    OursPermitsCounted,
    DistributedReadWrite,
    DistributedSemaphore,
    RedissonReadWrite,
    RedissonSemaphore,
    RedissonExpirable,
    Semaphore,
}

/// The permits of each contender that has some.
pub(crate) const PERMITS: u32 = 10;

/// How long tower-lock keeps leases, where it does.
pub(crate) const KEPT: Duration = Duration::from_millis(10);

impl Contender {
    pub(crate) const ALL: [Self; 12] = [
        Self::Ours,
        Self::OursAwaited,
        Self::OursBackend,
        Self::Bare,
        Self::BareBehind,
        Self::BareToken,
        Self::Checkout,
        Self::Rslock,
        Self::DistributedLock,
        Self::Redisson,
        Self::Rueidislock,
        Self::Redsync,
    ];

    /// The contenders for contended keys, with tower-lock as the layer uses it.
    pub(crate) const WAITING: [Self; 8] = [
        Self::Ours,
        Self::Bare,
        Self::Checkout,
        Self::Rslock,
        Self::DistributedLock,
        Self::Redisson,
        Self::Rueidislock,
        Self::Redsync,
    ];

    /// The contenders for contended keys, and a mutex as the bound for one process and one key.
    pub(crate) const IN_ONE_PROCESS: [Self; 9] = [
        Self::Ours,
        Self::Bare,
        Self::Checkout,
        Self::Rslock,
        Self::DistributedLock,
        Self::Redisson,
        Self::Rueidislock,
        Self::Redsync,
        Self::Mutex,
    ];

    /// The contenders for keys that come back to one process.
    pub(crate) const REPEATED: [Self; 4] =
        [Self::Ours, Self::OursKept, Self::OursInMemory, Self::Rslock];

    /// The contenders for shared locks.
    pub(crate) const READ_WRITE: [Self; 3] = [
        Self::Ours,
        Self::DistributedReadWrite,
        Self::RedissonReadWrite,
    ];

    /// The contenders for the permits of one key, over all processes.
    pub(crate) const SEMAPHORES: [Self; 4] = [
        Self::OursPermits,
        Self::DistributedSemaphore,
        Self::RedissonSemaphore,
        Self::RedissonExpirable,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "tower-lock",
            Self::OursAwaited => "tower-lock, release awaited",
            Self::OursKept => "tower-lock, leases kept for 10 ms",
            Self::OursInMemory => "tower-lock in memory",
            Self::OursBackend => "`RedisBackend` alone",
            Self::Bare => "scripts alone",
            Self::BareBehind => "scripts alone, release not awaited",
            Self::BareToken => "scripts alone, with the token",
            Self::Checkout => "scripts, a checkout per command",
            Self::Rslock => "rslock",
            Self::DistributedLock => "distributed-lock",
            Self::Redisson => "Redisson `RLock`",
            Self::RedissonFair => "Redisson `RFairLock`",
            Self::Rueidislock => "rueidislock",
            Self::Redsync => "redsync",
            Self::Mutex => "`tokio::sync::Mutex`",
            Self::OursPermits => "tower-lock",
            Self::OursPermitsCounted => "tower-lock, holders counted",
            Self::DistributedReadWrite | Self::DistributedSemaphore => "distributed-lock",
            Self::RedissonReadWrite => "Redisson `RReadWriteLock`",
            Self::RedissonSemaphore => "Redisson `RSemaphore`",
            Self::RedissonExpirable => "Redisson `RPermitExpirableSemaphore`",
            Self::Semaphore => "`tokio::sync::Semaphore`",
        }
    }

    /// Returns how many commands the clients have sent. Redis counts the commands that scripts call as
    /// well, so this counts only commands that the scripts do not call.
    pub(crate) fn sent(self, calls: impl Fn(&str) -> u64) -> u64 {
        let sum = |commands: &[&str]| commands.iter().map(|name| calls(name)).sum::<u64>();
        match self {
            Self::Ours | Self::OursAwaited | Self::OursKept | Self::OursBackend => {
                sum(&["evalsha", "eval", "subscribe", "unsubscribe"])
            }
            Self::Bare | Self::BareBehind | Self::BareToken => calls("evalsha"),
            Self::Checkout => sum(&["evalsha", "ping", "unwatch"]),
            Self::Rslock | Self::Rueidislock | Self::Redsync => sum(&["set", "evalsha"]),
            Self::DistributedLock => sum(&["set", "eval"]),
            // The script of a release deletes the lock and publishes, once each. The client then deletes
            // the key that kept the reply for a retry.
            Self::Redisson => {
                sum(&["evalsha", "eval", "subscribe", "unsubscribe", "ping", "del"])
                    - calls("publish")
            }
            // Only scripts count, as under `herd`, because the scripts also call the commands that the
            // client sends.
            Self::RedissonFair => sum(&["evalsha", "eval"]),
            // No scenario counts the commands of the others.
            _ => 0,
        }
    }

    /// Returns how long the contender must run before the first measurement. A JVM compiles frequent
    /// code at run time.
    pub(crate) fn warm_up(self) -> Duration {
        match self.is_java() {
            true => Duration::from_secs(4),
            false => Duration::from_millis(200),
        }
    }

    pub(crate) fn is_java(self) -> bool {
        self.java_kind().is_some()
    }

    /// Returns `true` if a process can have several managers.
    pub(crate) fn shares_processes(self) -> bool {
        !self.is_java() && self.go_kind().is_none()
    }

    /// Returns the name that the Java program has for this contender.
    fn java_kind(self) -> Option<&'static str> {
        Some(match self {
            Self::Redisson => "plain",
            Self::RedissonFair => "fair",
            Self::RedissonReadWrite => "readwrite",
            Self::RedissonSemaphore => "semaphore",
            Self::RedissonExpirable => "expirable",
            _ => return None,
        })
    }

    /// Returns the name that the Go program has for this contender.
    fn go_kind(self) -> Option<&'static str> {
        Some(match self {
            Self::Rueidislock => "rueidislock",
            Self::Redsync => "redsync",
            _ => return None,
        })
    }

    /// Returns the program that runs so many managers: this one, or one in Java or Go, which has one client per process.
    pub(crate) fn program(self, managers: usize, url: &str) -> Result<Command, String> {
        match (self.java_kind(), self.go_kind()) {
            (Some(kind), _) => redisson::program(url, kind, PERMITS),
            (None, Some(kind)) => golocks::program(url, kind),
            (None, None) => {
                let (name, managers) = (format!("{self:?}"), managers.to_string());
                Ok(this_program(&["work", &name, &managers, url]))
            }
        }
    }

    /// Works as the contender of this name.
    pub(crate) async fn work(name: &str, managers: &str, url: &str) -> Result<(), Failure> {
        let managers = managers.parse()?;
        let alone = [Self::OursPermitsCounted, Self::Mutex, Self::Semaphore];
        let all = Self::ALL.into_iter().chain(alone).chain(Self::REPEATED);
        let mut all = all.chain(Self::READ_WRITE).chain(Self::SEMAPHORES);
        let named = all.find(|it| format!("{it:?}") == name);
        match named.ok_or("no such contender")? {
            Self::Ours => {
                serve(managers, async || {
                    ours::connect(url, ours::Release::Background).await
                })
                .await
            }
            Self::OursPermits => serve(managers, async || ours::permits(url).await).await,
            Self::OursPermitsCounted => {
                serve(managers, async || {
                    counted::connect(url, ours::permits(url).await?).await
                })
                .await
            }
            Self::OursAwaited => {
                serve(managers, async || {
                    ours::connect(url, ours::Release::Awaited).await
                })
                .await
            }
            Self::OursKept => serve(managers, async || ours::keeping(url).await).await,
            Self::OursInMemory => serve(1, async || Ok(ours::in_memory())).await,
            Self::OursBackend => serve(managers, async || ours_backend::connect(url).await).await,
            Self::Bare => {
                serve(managers, async || {
                    bare::connect(url, bare::Token::None).await
                })
                .await
            }
            Self::BareBehind => serve(managers, async || bare::connect_behind(url).await).await,
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
            Self::DistributedReadWrite => {
                serve(managers, async || distributed_modes::read_write(url).await).await
            }
            Self::DistributedSemaphore => {
                serve(managers, async || distributed_modes::semaphore(url).await).await
            }
            Self::Mutex => serve(1, async || Ok(mutex::Mutex::default())).await,
            Self::Semaphore => serve(1, async || Ok(semaphore::Semaphore::new())).await,
            Self::Redisson
            | Self::RedissonFair
            | Self::RedissonReadWrite
            | Self::RedissonSemaphore
            | Self::RedissonExpirable
            | Self::Rueidislock
            | Self::Redsync => Err("a program of its own".into()),
        }
    }
}
