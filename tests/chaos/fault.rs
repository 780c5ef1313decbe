//! The faults, and the alerts that must fire.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::support::engine::SECOND;
use crate::support::proxy::Proxy;
use crate::support::redis_server::RedisServer;

pub(crate) struct Fault {
    pub(crate) name: &'static str,
    /// The watchdog timeout.
    pub(crate) lease: Duration,
    /// Whether held locks are lost.
    pub(crate) loses: bool,
    /// All alerts that fire in the run, in alphabetical order.
    pub(crate) alerts: &'static [&'static str],
    kind: Kind,
}

enum Kind {
    Nothing,
    /// The server is killed and restarts without its data.
    Killed,
    /// The server gets SIGSTOP, and continues later.
    Stopped,
    /// The proxy resets all connections, and new ones.
    CutOff,
    /// The proxy resets all connections once.
    Reconnect,
    MemoryFull,
    /// The user loses a permission that only releases need.
    ReleasesDenied,
    /// The user loses the permission to subscribe, and its subscriptions end.
    SubscriptionsDenied,
    /// The proxy drops the messages of subscriptions, which no process notices.
    MessagesDropped,
    /// A handler blocks the only thread. The managers renew on threads of their own.
    Blocked,
}

type Change = fn(&mut RedisServer);

const BUSY: &str = "TowerLockBusyRatio";
const DOWN: &str = "TowerLockBackendDown";
const LOST: &str = "TowerLockLost";
const REJECTED: &str = "TowerLockReleasesRejected";
const STUCK: &str = "TowerLockReleasesStuck";
const RENEWALS: &str = "TowerLockRenewalsFailing";
const UNHEARD: &str = "TowerLockNotificationsDown";
const UNNOTIFIED: &str = "TowerLockNotificationsBroken";
/// It also fires if the machine delays a run.
pub(crate) const WATCHDOG_LATE: &str = "TowerLockWatchdogLate";

/// A lease that ends in the outage, and one that outlasts it.
const SHORT: Duration = Duration::from_secs(4);
const LONG: Duration = Duration::from_secs(12);
const OUTAGE: Duration = Duration::from_secs(5);
/// After 10 s, which count as 10 minutes, most wake-ups in that time had no message. 10 s later, the alert fires.
const LONG_OUTAGE: Duration = Duration::from_secs(30);

impl Fault {
    /// Returns the address for the managers. The proxy runs on the thread that a handler blocks.
    pub(crate) fn url(&self, server: &RedisServer, proxy: &Proxy) -> String {
        match self.kind {
            Kind::Blocked => server.url(),
            _ => proxy.url(),
        }
    }

    /// Returns an alert that may fire or not: the outage hardly lasts longer than what the alert waits for.
    pub(crate) fn may_fire(&self) -> &'static str {
        match self.kind {
            Kind::Stopped => RENEWALS,
            Kind::MessagesDropped => UNNOTIFIED,
            _ => "",
        }
    }
}

pub(crate) const FAULTS: &[Fault] = &[
    Fault {
        name: "nothing",
        lease: SHORT,
        loses: false,
        alerts: &[],
        kind: Kind::Nothing,
    },
    Fault {
        name: "killed",
        lease: SHORT,
        loses: true,
        alerts: &[DOWN, LOST, STUCK, RENEWALS],
        kind: Kind::Killed,
    },
    Fault {
        name: "stopped",
        lease: SHORT,
        loses: true,
        alerts: &[DOWN, LOST, STUCK],
        kind: Kind::Stopped,
    },
    // Nothing is lost: the leases outlast it.
    Fault {
        name: "cut_off",
        lease: LONG,
        loses: false,
        alerts: &[DOWN, STUCK, RENEWALS],
        kind: Kind::CutOff,
    },
    Fault {
        name: "reconnect",
        lease: LONG,
        loses: false,
        alerts: &[],
        kind: Kind::Reconnect,
    },
    // The server still renews and releases.
    Fault {
        name: "memory_full",
        lease: SHORT,
        loses: false,
        alerts: &[DOWN],
        kind: Kind::MemoryFull,
    },
    // The server still grants and renews.
    Fault {
        name: "releases_denied",
        lease: LONG,
        loses: false,
        alerts: &[REJECTED, STUCK],
        kind: Kind::ReleasesDenied,
    },
    // The server still grants, renews and releases. Waiters poll.
    Fault {
        name: "subscriptions_denied",
        lease: LONG,
        loses: false,
        alerts: &[UNHEARD],
        kind: Kind::SubscriptionsDenied,
    },
    // Waiters poll, and their wait is shorter than the time between two polls.
    Fault {
        name: "messages_dropped",
        lease: LONG,
        loses: false,
        alerts: &[BUSY],
        kind: Kind::MessagesDropped,
    },
    Fault {
        name: "blocked",
        lease: SHORT,
        loses: false,
        alerts: &[],
        kind: Kind::Blocked,
    },
];

impl Fault {
    /// Completes at the end of the outage. The calls that block have a thread of their own, because the load has only
    /// one.
    pub(crate) async fn happen(&self, mut server: RedisServer, proxy: &Proxy) -> RedisServer {
        let (before, after): (Change, Change) = match self.kind {
            Kind::Nothing => (|_| {}, |_| {}),
            Kind::Killed => (RedisServer::kill, RedisServer::launch_again),
            Kind::Stopped => (|it| it.stop_process(), |it| it.continue_process()),
            Kind::CutOff => {
                proxy.refuse();
                proxy.cut();
                (|_| {}, |_| {})
            }
            Kind::Reconnect => {
                proxy.cut();
                (|_| {}, |_| {})
            }
            Kind::MemoryFull => (
                |it| drop(it.cli(&["CONFIG", "SET", "maxmemory", "1"])),
                |it| drop(it.cli(&["CONFIG", "SET", "maxmemory", "0"])),
            ),
            Kind::ReleasesDenied => (
                |it| drop(it.cli(&["ACL", "SETUSER", "default", "-hdel"])),
                |it| drop(it.cli(&["ACL", "SETUSER", "default", "+hdel"])),
            ),
            Kind::SubscriptionsDenied => (
                |it| {
                    it.cli(&["ACL", "SETUSER", "default", "-subscribe"]);
                    it.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                },
                |it| drop(it.cli(&["ACL", "SETUSER", "default", "+subscribe"])),
            ),
            Kind::MessagesDropped => {
                proxy.drop_messages();
                (|_| {}, |_| {})
            }
            Kind::Blocked => {
                std::thread::sleep(OUTAGE);
                (|_| {}, |_| {})
            }
        };
        let outage = match self.kind {
            Kind::MessagesDropped => LONG_OUTAGE,
            _ => OUTAGE,
        };
        for (change, then) in [(before, outage), (after, SECOND)] {
            let changing = spawn_blocking(move || {
                change(&mut server);
                server
            });
            server = changing.await.unwrap();
            sleep(then).await;
            proxy.heal();
        }
        server
    }
}
