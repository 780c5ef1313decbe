//! The queue of one key of the simulated store: the waiting leases in order, and the place of the clients outside.

use tower_lock::backend::{LeaseId, Mode};

use crate::time::{MS, Time};

/// How long a lease lasts that was transferred to a waiter without messages.
pub const POLLED: Time = 300 * MS;

/// How long a place lasts without a refresh.
const ALIVE: Time = 3_000 * MS;

/// When a waiter without messages attempts again: after this for each place up to its own.
const STEP: Time = 3 * MS;

/// The longest time between two of its attempts.
const POLL: Time = 100 * MS;

/// The time in which clients outside the queue can acquire a free key.
pub const TURN: Time = 10 * MS;

fn pace(ahead: usize) -> Time {
    POLL.min(STEP * (Time::try_from(ahead).unwrap() + 1))
}

#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub lease: LeaseId,
    pub manager: usize,
    pub mode: Mode,
    /// The limit of a permit, or 0.
    pub limit: usize,
    pub listens: bool,
    /// When it entered the queue, by the clock of the store.
    pub entered: Time,
    until: Time,
}

/// How a lease asks for the key. A place keeps it.
#[derive(Debug, Clone, Copy)]
pub struct Asks {
    pub mode: Mode,
    /// The limit of a permit, or 0.
    pub limit: usize,
}

/// What is next in the queue.
#[derive(Debug, Clone, Copy)]
pub enum Next {
    Place(Place),
    /// The turn of the clients outside has begun.
    Outside,
}

#[derive(Debug, Default)]
pub struct Queue {
    members: Vec<Next>,
    /// The end of the turn of the clients outside, by the clock of the store.
    turn_until: Option<Time>,
}

impl Place {
    /// Returns `true` if the lease may hold the key beside so many of this mode.
    fn fits(&self, (mode, held): (Mode, usize)) -> bool {
        self.mode == mode && (mode == Mode::Shared || held < self.limit)
    }

    /// Returns `true` if a waiter with so many places ahead listens, or attempts about as soon as from an attempt now.
    fn is_awake(&self, ahead: usize, clock: Time) -> bool {
        self.listens || self.until - ALIVE <= clock + pace(ahead)
    }
}

impl Queue {
    /// Enters the queue at its end, or refreshes a place. `clock` is the time of the store. Returns the time until
    /// the next attempt of a waiter without messages.
    pub fn enter(
        &mut self,
        (lease, Asks { mode, limit }): (LeaseId, Asks),
        manager: usize,
        listens: bool,
        clock: Time,
    ) -> Option<Time> {
        let is_own = |it: &Next| matches!(it, Next::Place(place) if place.lease == lease);
        let known = self.members.iter().position(is_own);
        let poll_after = (!listens).then(|| pace(known.unwrap_or(self.members.len())));
        let until = clock + ALIVE + poll_after.unwrap_or(0);
        match known.map(|at| &mut self.members[at]) {
            Some(Next::Place(place)) => (place.listens, place.until) = (listens, until),
            _ => self.members.push(Next::Place(Place {
                lease,
                manager,
                mode,
                limit,
                listens,
                entered: clock,
                until,
            })),
        }
        poll_after
    }

    /// Gives the clients outside the last place, unless they have one.
    pub fn enter_outside(&mut self) {
        if !(self.members.iter()).any(|member| matches!(member, Next::Outside)) {
            self.members.push(Next::Outside);
        }
    }

    pub fn leave(&mut self, lease: LeaseId) -> Option<Place> {
        let is_own = |it: &Next| matches!(it, Next::Place(place) if place.lease == lease);
        let at = self.members.iter().position(is_own)?;
        match self.members.remove(at) {
            Next::Place(place) => Some(place),
            Next::Outside => None,
        }
    }

    /// Returns `true` if a shared lease or a permit has to wait: another one waits before it, or the clients outside are
    /// due a turn. Shared leases do not wait for each other. Without a place of its own, it comes last.
    pub fn is_wanted(
        &mut self,
        clock: Time,
        outside_listens: bool,
        mode: Mode,
        own: Option<LeaseId>,
    ) -> bool {
        for member in self.members.clone() {
            match member {
                Next::Place(place) if own == Some(place.lease) => return false,
                Next::Place(place) => {
                    let share = [mode, place.mode] == [Mode::Shared; 2];
                    if !share && place.until > clock {
                        return true;
                    }
                }
                Next::Outside if outside_listens => return true,
                Next::Outside => self.forget_outside(),
            }
        }
        false
    }

    fn forget_outside(&mut self) {
        self.members.retain(|it| matches!(it, Next::Place(_)));
    }

    /// Returns the first place that is alive and can be reached, or begins the turn of the clients outside if they are
    /// next and listen. An unreachable place stays, and so does a sleeping one unless all others sleep.
    ///
    /// `beside`: so many leases of this mode hold the key, so only those that fit are next, up to the first that does not.
    pub fn next(
        &mut self,
        clock: Time,
        outside_listens: bool,
        beside: Option<(Mode, usize)>,
        reaches: impl Fn(&Place) -> bool,
    ) -> Option<Next> {
        (self.members).retain(|it| !matches!(it, Next::Place(place) if place.until <= clock));
        let mut asleep = None;
        for (ahead, member) in self.members.clone().into_iter().enumerate() {
            match member {
                Next::Place(place) if beside.is_some_and(|held| !place.fits(held)) => return None,
                Next::Place(place) if !reaches(&place) => {}
                Next::Place(place) if place.is_awake(ahead, clock) => return Some(member),
                Next::Place(_) => asleep = asleep.or(Some(member)),
                Next::Outside if beside.is_some() && outside_listens => return None,
                Next::Outside => {
                    self.forget_outside();
                    if outside_listens {
                        self.begin_turn(clock);
                        return Some(member);
                    }
                }
            }
        }
        asleep.filter(|_| beside.is_none())
    }

    /// Begins the turn of the clients outside.
    pub fn begin_turn(&mut self, clock: Time) {
        self.turn_until = Some(clock + TURN);
    }

    /// Returns what is left of the turn of the clients outside. A turn that seems longer than it was is from before a
    /// step back of the clock.
    pub fn turn(&self, clock: Time) -> Option<Time> {
        let left = self.turn_until? - clock;
        (1..=TURN).contains(&left).then_some(left)
    }

    pub fn end_turn(&mut self) {
        self.turn_until = None;
    }

    /// The clock of the store steps. When a place was entered does not change.
    pub fn step(&mut self, step: Time) {
        for member in &mut self.members {
            if let Next::Place(place) = member {
                place.entered += step;
            }
        }
    }

    /// The live places, each with `true` if a release would not pass it over as asleep.
    pub fn live(&self, clock: Time) -> impl Iterator<Item = (&Place, bool)> {
        let members = self.members.iter().enumerate();
        let places = members.filter_map(move |(ahead, member)| match member {
            Next::Place(place) => Some((place, place.is_awake(ahead, clock))),
            Next::Outside => None,
        });
        places.filter(move |(place, _)| place.until > clock)
    }
}
