//! 100,000 random requests against the constructors of `LockLayer` and `Locked`, with fixed seeds.
//!
//! The program is right, so no response is a 5xx. A request runs only under its locks, and the handler sees the values
//! that are in the keys. A copy of each request that ran is kept out while one of its keys is held exclusively, and runs
//! beside another read or permit if it shares the key.
//!
//! `input` has the body of the fuzz target, which is run over changed requests here as well.

mod check;
mod draw;
mod input;
mod routes;

use std::thread;

use fastrand::Rng;
use tokio::runtime::Builder;

use self::check::{Apps, Outcome};
use self::routes::{ALL, By};

const SEEDS: u64 = 100;
const REQUESTS_PER_SEED: usize = 1_000;
const OUTCOMES: [Outcome; 4] = [
    Outcome::Locked,
    Outcome::Passed,
    Outcome::Rejected,
    Outcome::Abandoned,
];

/// The number of requests of each kind of layer that had each outcome.
#[derive(Debug, Default, Clone, Copy)]
struct Counts([[usize; OUTCOMES.len()]; ALL.len()]);

impl Counts {
    fn add(&mut self, at: usize, outcome: Outcome) {
        let index = OUTCOMES.iter().position(|other| *other == outcome);
        self.0[at][index.unwrap()] += 1;
    }

    fn merge(&mut self, other: &Self) {
        for (mine, other) in self.0.iter_mut().flatten().zip(other.0.iter().flatten()) {
            *mine += other;
        }
    }

    fn total(&self) -> usize {
        self.0.iter().flatten().sum()
    }

    /// Checks that each kind of layer had each outcome that it can have, often.
    fn assert_varied(&self) {
        for (by, [locked, passed, rejected, abandoned]) in ALL.iter().zip(self.0) {
            let line = format!("{by:?}: {:?}", [locked, passed, rejected, abandoned]);
            assert!(locked > 250, "{line}");
            assert!(rejected > 300, "{line}");
            assert_eq!(passed > 300, by.can_pass(), "{line}");
            // Only this one waits for a body, and has no deadline.
            assert_eq!(abandoned > 50, *by == By::Json, "{line}");
        }
    }
}

async fn send(seeds: impl Iterator<Item = u64>) -> Counts {
    let apps = Apps::new();
    let mut counts = Counts::default();
    for seed in seeds {
        let mut rng = Rng::with_seed(seed);
        let mut sent = 0;
        while sent < REQUESTS_PER_SEED {
            let at = rng.usize(..ALL.len());
            // A server rejects the others.
            if let Some(request) = draw::request(&mut rng) {
                counts.add(at, apps.check(at, &request).await);
                sent += 1;
            }
        }
    }
    counts
}

#[test]
fn random_request_runs_only_under_its_lock() {
    const THREADS: usize = 2;
    let run = |thread: usize| {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(send((0..SEEDS).skip(thread).step_by(THREADS)))
    };
    let mut counts = Counts::default();
    thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || run(thread)));
        for thread in threads {
            counts.merge(&thread.join().unwrap());
        }
    });
    assert_eq!(counts.total(), 100_000);
    counts.assert_varied();
}

/// Returns the bytes of a request of the fuzzer, some of which are changed.
fn changed_input(rng: &mut Rng) -> Option<Vec<u8>> {
    let request = draw::request(rng)?;
    let mut input = vec![rng.u8(..), rng.u8(..)];
    input.extend(request.uri.to_string().bytes());
    for (name, value) in &request.headers {
        input.extend([b"\n", name.as_str().as_bytes(), b":", value.as_bytes()].concat());
    }
    input.extend(b"\n\n");
    input.extend(request.frames.concat());
    for _ in 0..rng.usize(..4) {
        let at = rng.usize(..input.len());
        match rng.u32(..3) {
            0 => input[at] = rng.u8(..),
            1 => drop(input.remove(at)),
            _ => input.insert(at, rng.u8(..)),
        }
    }
    Some(input)
}

#[test]
fn fuzz_target_accepts_changed_requests() {
    let mut rng = Rng::with_seed(SEEDS);
    let inputs = std::iter::repeat_with(|| changed_input(&mut rng));
    let outcomes = inputs.flatten().take(20_000);
    let outcomes: Vec<_> = outcomes.filter_map(|input| input::check(&input)).collect();
    for outcome in OUTCOMES {
        let count = outcomes.iter().filter(|it| **it == outcome).count();
        assert!(count > 50, "{outcome:?}: {count}");
    }
}
