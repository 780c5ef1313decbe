//! Draws the plan of a seed.

mod events;

use fastrand::Rng;

use crate::plan::{
    Acquire, Actor, Event, Fate, Manager, Messages, Ms, Owner, Plan, Release, Step, Wait,
};

/// Which classes of behavior and of faults are drawn.
#[derive(Debug, Clone)]
pub struct Weights {
    off: Vec<String>,
}

/// Every class, by the name under which it can be switched off.
pub const CLASSES: &[&str] = &[
    // Runtimes.
    "runtimes",
    "fixed",
    "idle",
    "block",
    "stop",
    "end",
    "kill",
    // The machine, and the clock of the store.
    "suspend",
    "forward",
    "back",
    // The store and its wires.
    "restart",
    "lost",
    "refused",
    "late",
    "hung",
    "stopped",
    "twice",
    "hints",
    "recovery",
    "messages",
    "transfers",
    "lingering",
    "kept",
    "deaf",
    "distant",
    "outsiders",
    // Callers.
    "single",
    "several",
    "nested",
    "terms",
    "owners",
    "shared",
    "permits",
    "downgrade",
    "lease",
    "max_hold",
    "dropped",
    "stalled",
    "forgotten",
    "outside",
    "force",
    "shutdown",
    "bounds",
];

/// How long a transferred lease lasts in Redis.
pub const TRANSFER_TTL: Ms = 1_500;

/// Most leases between these two expire before the next attempt of their waiter, if their message is late. The waiter
/// confirms those that are shorter.
const SHORTEST_TRANSFER: Ms = 550;

/// The delay of a request, and of a reply, at a store that takes up to 120 ms for a command.
pub const DISTANT: (Ms, Ms) = (0, 60);

impl Weights {
    /// All classes but these. Fails at a name that is no class.
    pub fn without(off: &[&str]) -> Result<Self, String> {
        match off.iter().find(|name| !CLASSES.contains(*name)) {
            Some(name) => Err(format!("no class is called `{name}`: {CLASSES:?}")),
            None => Ok(Self {
                off: off.iter().map(|&name| name.to_owned()).collect(),
            }),
        }
    }

    fn has(&self, class: &str) -> bool {
        debug_assert!(CLASSES.contains(&class), "{class}");
        !self.off.iter().any(|off| off == class)
    }
}

/// One seed's source of random choices, and the classes it may choose from.
struct Draw<'a> {
    random: Rng,
    downgrades: Rng,
    weights: &'a Weights,
    /// Guards are mostly held for longer than a lease.
    long: bool,
    /// How many keys of a hundred are locked shared.
    shared: u64,
    /// How many acquires of a hundred ask for permits.
    permits: u64,
    /// Draws the permits. Without them, a plan is the same.
    of_permits: Rng,
}

pub fn draw(seed: u64, weights: &Weights) -> Plan {
    let mut random = Rng::with_seed(seed ^ 0x5eed_0000_0000);
    let long = seed.is_multiple_of(3);
    let shared = [0, 0, 30, 60, 90][random.usize(..5)];
    let mut of_permits = Rng::with_seed(seed ^ 0x9e37_0000_0000);
    let permits = [0, 0, 0, 50, 95][of_permits.usize(..5)];
    let draw = Draw {
        random,
        downgrades: Rng::with_seed(seed ^ 0x5eed_0001_0000),
        weights,
        long,
        shared,
        permits,
        of_permits,
    };
    draw.plan(seed)
}

impl Draw<'_> {
    /// Whether a class comes up this time, in so many of a hundred.
    fn comes(&mut self, class: &str, percent: u64) -> bool {
        self.random.u64(0..100) < percent && self.weights.has(class)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.random.usize(..from.len())].clone()
    }

    /// Short spans as often as long ones.
    fn span(&mut self, shortest: Ms, longest: Ms) -> Ms {
        let (low, high) = ((shortest as f64).ln(), (longest as f64).ln());
        (low + (high - low) * self.random.f64()).exp().round() as Ms
    }

    fn plan(mut self, seed: u64) -> Plan {
        let keys = self.pick(&[1, 1, 2, 2, 3]);
        let managers = self.pick(&[1, 1, 2, 2, 3]);
        let watchdog = self.pick(&[60, 150, 300, 600, 1_000, 3_000, 3_000]);
        let managers: Vec<Manager> = (0..managers).map(|_| self.manager(watchdog)).collect();
        let length = self.span(2_000, 12_000).min(watchdog * 60);
        let busiest = self.pick(&[0, 5, 300, 2_000]);
        let actors = self.random.usize(2..12);
        let actors = (0..actors).map(|_| self.actor(keys, &managers, length, busiest));
        let actors = actors.collect();
        let mut plan = Plan {
            seed,
            length,
            keys,
            delay: self.pick(&[(0, 0), (0, 2), (1, 5), (3, 20)]),
            grouped: self.random.bool(),
            queue: !seed.is_multiple_of(3),
            transfer_ttl: TRANSFER_TTL,
            lingers: false,
            messages: Messages::PROMPT,
            managers,
            actors,
            outsiders: Vec::new(),
            events: Vec::new(),
        };
        let events = self.pick(&[0, 1, 2, 3, 5, 8]);
        // Much of the same kind, or some of each.
        let theme = self.random.u8(..24);
        let themed = self.random.bool();
        for _ in 0..events {
            let at = self.random.u64(0..length);
            let any = self.random.u8(..24);
            if let Some(what) = self.event(&plan, if themed { theme } else { any }) {
                plan.events.push(Event { at, what });
            }
        }
        plan.events.sort_by_key(|event| event.at);
        if self.comes("messages", 60) {
            plan.messages = self.messages();
        }
        if self.comes("transfers", 60) {
            let longest = TRANSFER_TTL.min(watchdog.max(SHORTEST_TRANSFER));
            plan.transfer_ttl = self.span(SHORTEST_TRANSFER, longest);
        }
        if self.comes("outsiders", 25) {
            let outsiders = self.random.usize(1..3);
            let outsiders = (0..outsiders).map(|_| self.outsider(keys, length, busiest));
            plan.outsiders = outsiders.collect();
        }
        // A source of its own: without this class, a plan is the same.
        let lingers = Rng::with_seed(seed ^ 0x5eed_0002_0000).bool();
        plan.lingers = lingers && self.weights.has("lingering");
        // As above.
        let mut kept = Rng::with_seed(seed ^ 0x5eed_0004_0000);
        if kept.bool() && self.weights.has("kept") {
            let longest = [3, 10, 50, 100][kept.usize(..4)];
            for manager in &mut plan.managers {
                manager.keep = [0, longest, longest][kept.usize(..3)];
            }
        }
        // As above. A lease has to outlast some round trips.
        let mut far = Rng::with_seed(seed ^ 0x5eed_0003_0000);
        let (is_far, is_deaf) = (far.u8(..6) == 0, far.u8(..4) == 0);
        if is_far && watchdog >= 1_000 && self.weights.has("distant") {
            plan.delay = DISTANT;
        }
        if is_deaf && self.weights.has("deaf") {
            plan.messages = Messages::LOST;
        }
        if self.comes("fixed", 25) {
            for manager in &mut plan.managers {
                manager.fixed = Some(self.random.usize(..manager.runtimes));
            }
        }
        plan
    }

    fn messages(&mut self) -> Messages {
        Messages {
            lost: false,
            held: self.pick(&[0, 20, 50, 100]),
            late: self.pick(&[0, 20, 50, 100]),
            repeated: self.pick(&[0, 20, 100]),
            delay: self.span(100, 5_000),
        }
    }

    fn manager(&mut self, watchdog: Ms) -> Manager {
        let few = self.comes("bounds", 10);
        let limit = self.random.usize(1..4);
        let per_key = self.random.bool();
        let several = self.comes("runtimes", 60);
        let runtimes = self.random.usize(2..4);
        Manager {
            runtimes: if several { runtimes } else { 1 },
            fixed: None,
            watchdog,
            keep: 0,
            max_waiters: if few && !per_key { limit } else { 65_536 },
            max_waiters_per_key: if few && per_key { limit } else { 1_024 },
        }
    }

    fn actor(&mut self, keys: usize, managers: &[Manager], length: Ms, busiest: Ms) -> Actor {
        let manager = self.random.usize(..managers.len());
        let runtime = self.random.usize(..managers[manager].runtimes);
        let watchdog = managers[manager].watchdog;
        let mut steps = Vec::new();
        for _ in 0..self.random.usize(1..8) {
            self.hold(&mut steps, keys, watchdog);
            let pause = self.random.u64(0..=busiest);
            steps.push(Step::Pause(pause));
        }
        let start = self.span(1, length.max(2));
        Actor {
            manager,
            runtime,
            start: if self.random.bool() {
                start % 20
            } else {
                start
            },
            steps,
        }
    }

    /// Acquires, works, releases, with all that a caller may do between.
    fn hold(&mut self, steps: &mut Vec<Step>, keys: usize, watchdog: Ms) {
        if self.comes("shutdown", 2) {
            let grace = self.span(1, 3_000);
            steps.push(Step::Shutdown(grace));
        }
        let outer = self.acquire(keys, watchdog, None);
        steps.push(Step::Acquire(outer.clone()));
        self.work(steps, watchdog);
        self.downgrade(steps);
        let nested = if self.comes("nested", 25) {
            self.random.usize(1..3)
        } else {
            0
        };
        for _ in 0..nested {
            let inner = self.acquire(keys, watchdog, Some(&outer));
            steps.push(Step::Acquire(inner));
            self.work(steps, watchdog);
        }
        self.downgrade(steps);
        if self.comes("force", 4) {
            let key = self.random.usize(..keys);
            steps.push(Step::Force(key));
        }
        if self.random.u8(..20) == 0 {
            let key = self.random.usize(..keys);
            steps.push(Step::Inspect(key));
        }
        for _ in 0..=nested {
            let release = self.release();
            steps.push(Step::Release(release));
            self.work(steps, watchdog);
        }
    }

    /// The source is another one, so that the other choices of each seed stay as they were.
    fn downgrade(&mut self, steps: &mut Vec<Step>) {
        if self.downgrades.u8(..100) < 6 && self.weights.has("downgrade") {
            steps.push(Step::Downgrade(self.downgrades.u32(1..6)));
            steps.push(Step::Pause(self.downgrades.u64(..200)));
        }
    }

    fn work(&mut self, steps: &mut Vec<Step>, watchdog: Ms) {
        let pause = match self.random.u8(..10) {
            0..6 if self.long => self.span(watchdog / 2, watchdog * 4),
            0..4 => 0,
            4..8 => self.span(1, 50),
            _ => self.span(10, watchdog * 3),
        };
        if self.comes("block", 3) {
            steps.push(Step::Block(pause));
        } else if pause > 0 {
            steps.push(Step::Pause(pause));
        }
    }

    fn acquire(&mut self, keys: usize, watchdog: Ms, outer: Option<&Acquire>) -> Acquire {
        let fate = match self.random.u8(..100) {
            0..6 if self.weights.has("dropped") => Fate::DroppedAfterPolls(self.random.u32(1..5)),
            6..10 if self.weights.has("dropped") => Fate::DroppedAfter(self.span(1, 2_000)),
            10..15 if self.weights.has("stalled") => Fate::Stalled {
                polls: self.random.u32(1..4),
                pause: self.span(5, 3_000),
            },
            15..17 if self.weights.has("forgotten") => Fate::Forgotten {
                polls: self.random.u32(1..4),
            },
            _ => Fate::Awaited,
        };
        let wait = match self.random.u8(..100) {
            0..15 if self.weights.has("single") => Wait::Never,
            15..20 => Wait::Forever,
            _ => Wait::For(self.span(5, 5_000)),
        };
        let several = self.comes("several", 15);
        let mut chosen: Vec<usize> = (0..keys).collect();
        self.random.shuffle(&mut chosen);
        chosen.truncate(if several { self.random.usize(1..4) } else { 1 });
        chosen.sort_unstable();
        let fixed = self.comes("lease", 20);
        let fixed = fixed.then(|| self.span(15, 5_000));
        let capped = self.comes("max_hold", 10);
        let capped = capped.then(|| self.span(15, watchdog * 4));
        let mut keys = chosen;
        if let Some(outer) = outer
            && self.random.u8(..4) > 0
        {
            keys.clone_from(&outer.keys);
        }
        let mut shared = keys.clone();
        shared.retain(|_| self.comes("shared", self.shared));
        let permits = self.of_permits.u64(..100) < self.permits && self.weights.has("permits");
        let permits = permits.then(|| self.of_permits.u16(1..5));
        if permits.is_some() {
            shared.clear();
        }
        let known = self.comes("owners", 12);
        let number = self.random.usize(..2);
        match outer {
            Some(outer) => {
                let other = self.comes("terms", 50);
                Acquire {
                    keys,
                    shared,
                    permits,
                    owner: Owner::Nested,
                    lease: if other { fixed } else { outer.lease },
                    max_hold: capped.filter(|_| other),
                    wait,
                    fate,
                }
            }
            None => Acquire {
                keys,
                shared,
                permits,
                owner: if known {
                    Owner::Shared(number)
                } else {
                    Owner::Fresh
                },
                wait,
                lease: fixed,
                max_hold: capped,
                fate,
            },
        }
    }

    fn release(&mut self) -> Release {
        match self.random.u8(..20) {
            0..9 => Release::Dropped,
            9..11 if self.weights.has("outside") => Release::DroppedOutside,
            11..13 => Release::AwaitedForPolls(self.random.u32(1..4)),
            _ => Release::Awaited,
        }
    }
}
