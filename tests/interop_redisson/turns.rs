//! The order between clients outside the queue and the processes in it.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::busy::{Busy, HOLD, repeat};
use crate::cases::{BOTH, JAVA_RUST, NO_LEASE};
use crate::sides::Sides;
use crate::support::engine::SECOND;
use crate::table::Latencies;

/// A JVM compiles at run time.
const WARM_UP: Duration = SECOND;

/// A Java thread waits among managers of this crate that acquire again without a pause. It has a turn in each round of
/// the queue, or once in `pause` if that is longer.
///
/// The thread pauses after each unlock, which frees the key. Otherwise it would compete with the first process of the
/// queue: [`beside_relocking_thread`].
pub(crate) async fn among_busy_managers(sides: &Sides, managers: usize, pause: Duration) {
    const TIMES: usize = 50;
    const WARM_UP: usize = 5;
    let name = "interop:turns";
    let mut java = sides.java().await;
    let busy = Busy::start(sides, name, managers).await;
    let (mut waits, mut start) = (Latencies::default(), Instant::now());
    for time in 0..WARM_UP + TIMES {
        if time == WARM_UP {
            (waits, start) = (Latencies::default(), Instant::now());
            take(&busy);
        }
        let asked = Instant::now();
        let waiting = java.send("a", "tryLock", name, &[&30_000, &NO_LEASE]);
        let (locked, granted) = waiting.timed().await;
        assert_eq!(locked, "true");
        waits.add(granted - asked);
        java.call("a", "unlock", name, &[]).await;
        sleep(HOLD).await;
    }
    let (elapsed, ours) = (start.elapsed(), take(&busy));
    let round = round(elapsed, &ours);
    assert_in_turn(&waits, round.max(pause));
    let grants = grants(&ours);
    assert!(grants.iter().all(|it| *it > TIMES / 2), "{grants:?}");
    let result =
        format!("{waits}; rounds of {round:.0?}; grants of {managers} managers: {grants:?}");
    sides.row("turns among busy managers", JAVA_RUST, result);
}

/// Four threads of two JVMs wait among managers of this crate that acquire again without a pause.
///
/// Java has one turn in each round of the queue. A release wakes one thread of each JVM, and these threads compete for
/// the turn: Redisson has no order between JVMs. So the time without a grant of any thread has a bound, and the wait of
/// one thread is a matter of chance. Without managers, the longest wait of a thread was 27 grants of all threads.
pub(crate) async fn of_several_threads(sides: &Sides, managers: usize) {
    const JVMS: usize = 2;
    const THREADS: usize = 2;
    const WINDOW: Duration = Duration::from_secs(10);
    /// A thread that waits for longer is starved.
    const SERVED_WITHIN: Duration = Duration::from_secs(5);
    let name = "interop:threads";
    let mut javas = Vec::new();
    for _ in 0..JVMS {
        javas.push(sides.java().await);
    }
    let busy = Busy::start(sides, name, managers).await;
    // With a pause, the next lock of a thread does not compete with the waiters that its unlock wakes.
    repeat(&mut javas, THREADS, name, WARM_UP, HOLD).await;
    take(&busy);
    let threads = repeat(&mut javas, THREADS, name, WINDOW, HOLD).await;
    let ours = take(&busy);

    let round = round(WINDOW, &ours);
    let mut granted: Vec<_> = threads.iter().flat_map(|it| it.granted.clone()).collect();
    granted.sort_unstable();
    let mut apart = Latencies::default();
    granted.windows(2).for_each(|it| apart.add(it[1] - it[0]));
    assert_in_turn(&apart, round);
    let rounds = WINDOW.as_secs_f64() / round.as_secs_f64();
    // A JVM may be late for a turn of 10 ms.
    assert!(
        granted.len() as f64 >= rounds / 2.0,
        "{} grants, {rounds:.0} rounds",
        granted.len()
    );

    let java = grants(threads.iter().map(|it| &it.waits));
    let half = granted.len() / threads.len() / 2;
    assert!(java.iter().all(|it| *it >= half), "{java:?}");
    let longest = longest(threads.iter().map(|it| &it.waits));
    assert!(longest <= SERVED_WITHIN, "{longest:?}");
    let ours = grants(&ours);
    let all = granted.len() + ours.iter().sum::<usize>();
    let equal = all as f64 / (threads.len() + managers) as f64;
    let least = |of: &[usize]| of.iter().min().map_or(0.0, |least| *least as f64 / equal);
    assert!(least(&ours) >= 0.5, "{ours:?} beside {java:?}");
    let least = least(&java);
    let result = format!(
        "time between grants of Java: {apart}; rounds of {round:.0?}; grants of the threads: {java:?}, the \
         fewest are {least:.2} of an equal share; longest wait of a thread {} ms; grants of \
         {managers} managers: {ours:?}",
        longest.as_millis(),
    );
    sides.row("turns of 4 threads in 2 JVMs", JAVA_RUST, result);
}

/// A Java thread locks again without a pause, beside managers of this crate that do the same.
///
/// Each unlock in Java frees the key, and the thread competes with the first process of the queue. No release of this
/// crate can decide that.
pub(crate) async fn beside_relocking_thread(sides: &Sides, managers: usize) {
    const WINDOW: Duration = Duration::from_secs(5);
    /// If the thread wins four of five times, a process loses a hundred times in a row once in 5 billion waits.
    const SERVED_WITHIN: Duration = Duration::from_secs(2);
    /// The smallest part of the grants for all managers together: 0.2 on an idle machine. Beside a program that takes
    /// one of two cores, 0.06 was seen.
    const PART: f64 = 0.02;
    let name = &*format!("interop:relocked:{managers}");
    let mut java = [sides.java().await];
    let busy = Busy::start(sides, name, managers).await;
    repeat(&mut java, 1, name, WARM_UP, Duration::ZERO).await;
    take(&busy);
    let threads = repeat(&mut java, 1, name, WINDOW, Duration::ZERO).await;
    let ours = take(&busy);

    let longest_of_ours = longest(&ours);
    assert!(longest_of_ours <= SERVED_WITHIN, "{longest_of_ours:?}");
    let [java] = &threads[..] else {
        panic!("one thread has been started");
    };
    let (of_java, of_ours) = (java.granted.len(), grants(&ours).iter().sum::<usize>());
    let part = of_ours as f64 / (of_java + of_ours) as f64;
    assert!(part >= PART, "{of_ours} grants beside {of_java}");
    let result = format!(
        "the thread has {:.0} % of the grants, longest wait {} ms; managers: {managers}, with {:.0} %, longest wait \
         {} ms",
        100.0 * (1.0 - part),
        java.waits.at(1.0).as_millis(),
        100.0 * part,
        longest_of_ours.as_millis(),
    );
    sides.row("a thread that locks again at once", BOTH, result);
}

/// Asserts that the clients outside the queue have a turn in each `round`.
///
/// A JVM that does not run within a turn, which takes 10 ms, has the one of the next round. While many programs share
/// two cores, it is late for some turns in a row.
fn assert_in_turn(waits: &Latencies, round: Duration) {
    const SLACK: Duration = Duration::from_millis(200);
    let bounds = [
        (0.5, 2 * round),
        (0.9, 3 * round + SLACK),
        (1.0, 20 * round + SLACK),
    ];
    for (part, bound) in bounds {
        assert!(waits.at(part) <= bound, "{waits}; rounds of {round:.0?}");
    }
}

fn take(busy: &[Busy]) -> Vec<Latencies> {
    busy.iter().map(Busy::take).collect()
}

/// Returns the mean time of a round of the queue, in which each manager has one grant.
fn round(elapsed: Duration, ours: &[Latencies]) -> Duration {
    let grants: usize = grants(ours).iter().sum();
    elapsed.mul_f64(ours.len() as f64 / grants.max(1) as f64)
}

fn grants<'a>(clients: impl IntoIterator<Item = &'a Latencies>) -> Vec<usize> {
    clients.into_iter().map(Latencies::count).collect()
}

fn longest<'a>(clients: impl IntoIterator<Item = &'a Latencies>) -> Duration {
    let longest = clients.into_iter().map(|waits| waits.at(1.0));
    longest.max().expect("clients")
}
