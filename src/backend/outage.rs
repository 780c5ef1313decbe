//! Logs the beginning and the end of an outage once each, however many commands fail, and a change of its cause.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::with_causes;
use crate::mutex::Mutex;
use crate::observe::{Part, Reporter};

/// How long no key may fail until a success ends an outage of some keys: each success of another key would end an outage
/// that the next failure begins again.
const QUIET: Duration = Duration::from_secs(10);
/// How long an outage of all keys lasts that began again soon after its end, as with almost full memory.
const SETTLED: Duration = Duration::from_secs(1);

/// A service of a server that can fail, and whether its failure has been logged.
#[derive(Debug)]
pub(crate) struct Outage {
    begins: &'static str,
    ends: &'static str,
    address: String,
    server: Reporter,
    /// Whether an outage was reported. Written under the mutex, so that reports of a beginning and an end do not
    /// overtake each other.
    reported: AtomicBool,
    /// How many outages have ended.
    past: AtomicUsize,
    state: Mutex<OutageState>,
}

#[derive(Debug, Default)]
struct OutageState {
    failing: Failing,
    /// The last cause that was logged, without its numbers, and when. A remaining time is not another cause.
    logged: Option<(String, Instant)>,
}

/// The last failure, and the end of the last outage.
#[derive(Debug, Default, Clone, Copy)]
struct Failing {
    last: Option<(Failed, Instant)>,
    ended: Option<Instant>,
    /// The outage began soon after the end of the last one.
    began_again: bool,
}

/// What fails.
#[derive(Debug, Clone, Copy)]
enum Failed {
    SomeKeys,
    AllKeys,
}

impl Outage {
    /// Creates an outage of a part of a server that has not begun, from its two log messages.
    pub(crate) fn new(part: Part, begins: &'static str, ends: &'static str, address: &str) -> Self {
        Self {
            begins,
            ends,
            address: address.to_owned(),
            server: Reporter::new(address, part),
            reported: AtomicBool::new(false),
            past: AtomicUsize::new(0),
            state: Mutex::default(),
        }
    }

    /// Begins with the failure of a key, perhaps of this key alone.
    pub(crate) fn begin_for_some(&self, cause: &(dyn Error + 'static)) {
        self.begin_with(Some(Failed::SomeKeys), cause);
    }

    /// Begins with a failure that concerns all keys.
    pub(crate) fn begin_for_all(&self, cause: &(dyn Error + 'static)) {
        self.begin_with(Some(Failed::AllKeys), cause);
    }

    /// Ends with the success of a key if the last failure concerned all of them, or none has failed for a while.
    pub(crate) fn end_for_any(&self) {
        // The load keeps the usual case free of the lock.
        if !self.reported.load(Ordering::Relaxed) {
            return;
        }
        let failing = self.state.lock().failing;
        let is_over = match failing.last {
            None => true,
            Some((Failed::AllKeys, at)) => !failing.began_again || at.elapsed() >= SETTLED,
            Some((Failed::SomeKeys, at)) => at.elapsed() >= QUIET,
        };
        if is_over {
            self.end();
        }
    }

    pub(crate) fn begin(&self, cause: &(dyn Error + 'static)) {
        self.begin_with(None, cause);
    }

    fn begin_with(&self, failed: Option<Failed>, cause: &(dyn Error + 'static)) {
        let cause = with_causes(cause);
        let numberless: String = cause.chars().filter(|c| !c.is_ascii_digit()).collect();
        let now = Instant::now();
        let mut state = self.state.lock();
        if let Some(failed) = failed {
            state.failing.last = Some((failed, now));
        }
        let goes_on = self.reported.swap(true, Ordering::Relaxed);
        if !goes_on {
            let ended = state.failing.ended;
            state.failing.began_again = ended.is_some_and(|at| now - at < QUIET);
            self.server.outage_begins();
        }
        self.server.failed(&cause);
        // Causes may alternate.
        let is_logged = match &state.logged {
            Some((logged, at)) if goes_on => *logged != numberless && now - *at >= QUIET,
            _ => true,
        };
        if is_logged {
            state.logged = Some((numberless, now));
        }
        drop(state);
        #[cfg(feature = "tracing")]
        if is_logged {
            tracing::warn!(address = self.address, cause, "{}", self.begins);
        }
        let _unused_without_the_feature = (self.begins, &self.address);
    }

    /// Returns `true` during an outage.
    pub(crate) fn lasts(&self) -> bool {
        self.reported.load(Ordering::Relaxed)
    }

    /// Returns `true` during an outage that ends when the server is reached, and not when a key succeeds.
    #[cfg(feature = "redis")]
    pub(crate) fn ends_when_reached(&self) -> bool {
        self.lasts() && self.state.lock().failing.last.is_none()
    }

    /// Returns how many outages have ended. If one ends while a command is in flight, the failure of the command may be
    /// from before that end.
    pub(crate) fn past(&self) -> usize {
        self.past.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.over(self.ends);
    }

    fn over(&self, message: &str) {
        // The load keeps the usual case free of the lock.
        if !self.reported.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        if !self.reported.swap(false, Ordering::Relaxed) {
            return;
        }
        state.failing = Failing {
            ended: Some(Instant::now()),
            ..Failing::default()
        };
        self.past.fetch_add(1, Ordering::Relaxed);
        self.server.outage_ends();
        drop(state);
        #[cfg(feature = "tracing")]
        tracing::info!(address = self.address, "{message}");
        let _unused_without_the_feature = message;
    }
}

/// A node that left the cluster would otherwise stay unreachable in the log.
impl Drop for Outage {
    fn drop(&mut self) {
        self.over("server removed");
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn outage() -> Outage {
        Outage::new(Part::Commands, "begins", "ends", "test of outages")
    }

    fn cause() -> std::fmt::Error {
        std::fmt::Error
    }

    fn is_over(outage: &Outage) -> bool {
        !outage.reported.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn failure_of_all_keys_ends_with_any_key() {
        let outage = outage();
        outage.begin_for_all(&cause());
        assert!(!is_over(&outage));
        outage.end_for_any();
        assert!(is_over(&outage));
        // Almost full memory: the keys fail and succeed in turns.
        outage.begin_for_all(&cause());
        outage.end_for_any();
        assert!(!is_over(&outage));
        advance(SETTLED).await;
        outage.end_for_any();
        assert!(is_over(&outage));
        advance(QUIET).await;
        outage.begin_for_all(&cause());
        outage.end_for_any();
        assert!(is_over(&outage));
    }

    #[tokio::test(start_paused = true)]
    async fn failure_of_some_keys_ends_after_pause() {
        let outage = outage();
        outage.begin_for_all(&cause());
        for _ in 0..2 {
            outage.begin_for_some(&cause());
            advance(QUIET / 2).await;
            outage.end_for_any();
            assert!(!is_over(&outage));
        }
        advance(QUIET / 2).await;
        outage.end_for_any();
        assert!(is_over(&outage));
    }

    #[cfg(feature = "dashboard")]
    fn server(address: &str) -> crate::observe::Server {
        let servers = crate::observe::read_servers().into_iter();
        let mut servers = servers.filter(|server| server.address == address);
        servers.next().expect("a server")
    }

    #[cfg(feature = "dashboard")]
    #[test]
    fn cause_of_outage_is_last_one() {
        let address = "test of causes";
        let outage = Outage::new(Part::Commands, "begins", "ends", address);
        outage.begin(&cause());
        outage.begin(&std::io::Error::other("access denied"));
        let server = server(address);
        assert_eq!(
            (server.cause.as_str(), server.incidents),
            ("access denied", 1)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn changed_cause_is_logged_after_pause() {
        let outage = outage();
        let logged = || outage.state.lock().logged.clone().expect("a log line").0;
        let begin = |cause: &str| outage.begin(&std::io::Error::other(cause.to_owned()));
        begin("refused");
        advance(QUIET / 2).await;
        begin("denied for 19 s");
        assert_eq!(logged(), "refused");
        advance(QUIET / 2).await;
        begin("denied for 19 s");
        assert_eq!(logged(), "denied for  s");
        let (_, at) = outage.state.lock().logged.clone().expect("a log line");
        advance(QUIET).await;
        begin("denied for 4 s");
        assert_eq!(
            outage.state.lock().logged.as_ref().expect("a log line").1,
            at,
            "a number"
        );
    }

    #[cfg(feature = "dashboard")]
    #[test]
    fn concurrent_beginnings_and_ends_leave_server_up() {
        let address = "test of concurrent reports";
        let outage = Outage::new(Part::Commands, "begins", "ends", address);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..100_000).for_each(|_| outage.begin(&cause())));
            scope.spawn(|| (0..100_000).for_each(|_| outage.end()));
        });
        outage.end();
        assert!(server(address).is_up);
    }
}
