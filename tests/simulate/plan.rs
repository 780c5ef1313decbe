//! What happens in one seed, as an explicit list that can be shortened.

/// All times are milliseconds of virtual time.
pub type Ms = u64;

#[derive(Debug, Clone)]
pub struct Plan {
    /// Drives delays, jitter and the order of tasks.
    pub seed: u64,
    pub length: Ms,
    pub keys: usize,
    /// The shortest and the longest delay of a request, and of a reply.
    pub delay: (Ms, Ms),
    /// Each key is a group of its own in the store.
    pub grouped: bool,
    /// The store has a queue of waiters.
    pub queue: bool,
    /// How long a transferred lease lasts until it is confirmed.
    pub transfer_ttl: Ms,
    /// A subscription outlives its last waiter.
    pub lingers: bool,
    pub messages: Messages,
    pub managers: Vec<Manager>,
    pub actors: Vec<Actor>,
    pub outsiders: Vec<Outsider>,
    pub events: Vec<Event>,
}

/// How the messages of transfers arrive. A message that is late can arrive after a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Messages {
    /// No message arrives, of transfers or of releases.
    pub lost: bool,
    /// How many of a hundred arrive after the next reply that their process waits.
    pub held: u64,
    /// How many of the others are late.
    pub late: u64,
    /// How many of a hundred arrive again.
    pub repeated: u64,
    /// The longest delay of these.
    pub delay: Ms,
}

impl Manager {
    /// The runtime in which the background work runs: one of the callers, or one of its own that runs all the time.
    pub fn home(&self) -> usize {
        self.fixed.unwrap_or(self.runtimes)
    }
}

impl Messages {
    pub const PROMPT: Self = Self {
        lost: false,
        held: 0,
        late: 0,
        repeated: 0,
        delay: 0,
    };
    pub const LOST: Self = Self {
        lost: true,
        ..Self::PROMPT
    };
}

/// One process.
#[derive(Debug, Clone)]
pub struct Manager {
    /// The runtimes of the callers.
    pub runtimes: usize,
    /// The runtime of callers that is set for all background work.
    pub fixed: Option<usize>,
    pub watchdog: Ms,
    /// For how long it keeps released leases.
    pub keep: Ms,
    pub max_waiters: usize,
    pub max_waiters_per_key: usize,
}

#[derive(Debug, Clone)]
pub struct Actor {
    pub manager: usize,
    pub runtime: usize,
    pub start: Ms,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone)]
pub enum Step {
    Pause(Ms),
    Acquire(Acquire),
    /// Ends the hold of the latest guard, if there is one.
    Release(Release),
    /// Blocks the runtime of the actor.
    Block(Ms),
    /// Makes the latest guard shared, if there is one. The first future is dropped after so many polls, and another one
    /// awaits the result.
    Downgrade(u32),
    Inspect(usize),
    Force(usize),
    Shutdown(Ms),
}

#[derive(Debug, Clone)]
pub struct Acquire {
    pub keys: Vec<usize>,
    /// The keys that are locked shared.
    pub shared: Vec<usize>,
    /// The limit of permits, if it asks for those in place of locks.
    pub permits: Option<u16>,
    pub owner: Owner,
    pub wait: Wait,
    pub lease: Option<Ms>,
    pub max_hold: Option<Ms>,
    pub fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Fresh,
    /// One that actors of a manager share.
    Shared(usize),
    /// The owner of the latest guard of the actor.
    Nested,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Never,
    For(Ms),
    Forever,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Awaited,
    DroppedAfterPolls(u32),
    DroppedAfter(Ms),
    /// The future is not polled for a while.
    Stalled {
        polls: u32,
        pause: Ms,
    },
    /// Neither polled again nor dropped.
    Forgotten {
        polls: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    Dropped,
    DroppedOutside,
    Awaited,
    AwaitedForPolls(u32),
}

/// A client of the store that is not in its queue.
#[derive(Debug, Clone)]
pub struct Outsider {
    pub key: usize,
    pub start: Ms,
    /// How often it acquires the key.
    pub holds: u32,
    pub hold: Ms,
    pub pause: Ms,
}

#[derive(Debug, Clone)]
pub struct Event {
    pub at: Ms,
    pub what: What,
}

#[derive(Debug, Clone)]
pub enum What {
    /// The tasks of a runtime are not polled for a while.
    Idle {
        manager: usize,
        runtime: usize,
        pause: Ms,
    },
    /// The tasks of a runtime are never polled again, and not dropped.
    Stop {
        manager: usize,
        runtime: usize,
    },
    /// The tasks of a runtime are dropped.
    End {
        manager: usize,
        runtime: usize,
        outside: bool,
    },
    /// Neither polls nor drops run in this process any more.
    Kill {
        manager: usize,
    },
    Suspend(Ms),
    StepForward(Ms),
    StepBack(Ms),
    EmptyRestart,
    /// Notifies a manager that the store was unreachable.
    Recovery {
        manager: usize,
    },
    NoHints {
        pause: Ms,
    },
    /// Commands that are sent in a while meet trouble.
    Trouble {
        manager: Option<usize>,
        key: Option<usize>,
        command: Option<Command>,
        pause: Ms,
        /// How many commands of a hundred.
        share: u64,
        kind: Trouble,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    RequestLost,
    ReplyLost,
    ReplyLate(Ms),
    Refused,
    /// Takes effect when the trouble ends.
    Hung,
    /// As when the store is stopped. The commands that reach its buffers are [`Hung`](Self::Hung). Their
    /// connections are replaced after the response timeout, and no new one is established, so later commands fail
    /// and are not sent.
    Stopped,
    /// Executed twice, as when a connection ends and the backend sends a command again. Commands for which the contract
    /// documents no repeat are executed once.
    Twice {
        /// From the first execution to the second one.
        after: Ms,
        /// Whether the process receives the reply to the first execution. Otherwise, and for commands after which the
        /// second execution can differ, it receives the second reply.
        first: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Command {
    Acquire,
    Renew,
    Release,
    Pass,
    Inspect,
    Force,
    Contend,
    Leave,
    Downgrade,
}

impl Command {
    /// Whether the backend may send it again after its reply was lost.
    pub fn may_repeat(self) -> bool {
        !matches!(self, Self::Inspect | Self::Force)
    }

    /// Whether a repeat after a reply leaves that reply valid. A repeated `acquire` can succeed after a refusal, and a
    /// repeated `release_or_keep` can release what the first one kept.
    pub fn may_repeat_after_reply(self) -> bool {
        self.may_repeat() && !matches!(self, Self::Acquire | Self::Pass)
    }
}
