//! One attempt to acquire a key on a majority of the nodes.
//!
//! ```text
//! propose ──► a majority grants ──► it knows one counter ─────────────────────► granted
//!    │               │                     └─ else ──► confirm ──► it does now ───┘
//!    └───────────────┴── a majority is impossible ────► release ───► busy, or unavailable
//! ```
//!
//! The deadline of the engine starts before the first command. The lease at a node starts with its vote,
//! which is later, also in the second round. At the deadline, each node that granted therefore still holds
//! the lease. The clocks of the nodes only measure durations, and the drift allows for their speed. The
//! engine releases a grant that took longer than its lease.

use std::slice;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::Instant;

use super::election::{Election, Standing};
use super::fault::Cause;
use super::flight::Flight;
use super::inner::Inner;
use super::ledger::{FULL, Ledger};
use super::node::{Fence, Vote};
use crate::backend::{AcquireRequest, Acquired, BackendError, BackendErrorKind, LATE, Release};
use crate::jitter::up_to;
use crate::task::Timer;

/// An attempt, from the first command to its outcome.
struct Candidacy {
    inner: Arc<Inner>,
    request: AcquireRequest,
    election: Election,
    votes: Flight<Vote>,
}

/// # Cancel safety
///
/// The contract forbids dropping this future: votes in flight would not be released.
pub(super) async fn try_acquire(inner: &Arc<Inner>, request: &AcquireRequest) -> Vote {
    let began = Instant::now();
    (inner.ledger.lock()).open(&request.key, request.lease, began + request.ttl);
    let mut candidacy = Candidacy {
        inner: Arc::clone(inner),
        request: request.clone(),
        election: Election::new(inner.nodes.len()),
        votes: Flight::new(),
    };
    let proposal = inner.propose();
    for node in 0..inner.nodes.len() {
        if inner.ledger.lock().owes(node) >= FULL {
            // A task repeats its releases, or it would receive no votes again.
            inner.repeat_releases(node);
            let behind = BackendError::refused(BackendErrorKind::Unavailable, Cause::Behind);
            candidacy.election.cast(node, Err(behind), began);
        } else {
            candidacy.ask(node, Fence::Propose(proposal));
        }
    }
    let elected = match candidacy.answers(Election::standing).await {
        Some(counter) => candidacy.agree(counter.max(proposal)).await,
        None => None,
    };
    // A vote may have opened the connection that shows it, or that leads to another server again.
    let duplicate = inner.duplicate();
    if let (Some(counter), None) = (elected, &duplicate) {
        // The grant does not wait for nodes that receive its counter now.
        inner.finish(candidacy.votes);
        return Ok(Acquired::granted(counter));
    }
    match (candidacy.concede(began).await, duplicate) {
        (Err(unknown), _) if unknown.may_have_taken_effect() => Err(unknown),
        (_, Some(cause)) => Err(BackendError::refused(
            BackendErrorKind::Misconfigured,
            cause,
        )),
        (conceded, None) => conceded,
    }
}

impl Candidacy {
    /// Ensures that a majority has the counter of the grant, so that each later majority contains a node
    /// that has it. Each node that granted under a smaller one receives it, also one that lost its counter.
    async fn agree(&mut self, counter: u64) -> Option<u64> {
        self.inner.saw(counter);
        for node in self.election.behind(counter) {
            self.ask(node, Fence::Confirm(counter));
        }
        self.answers(|election| election.agreement(counter)).await
    }

    fn ask(&mut self, node: usize, fence: Fence) {
        let request = self.request.clone();
        let ttl = request.ttl;
        let claim = Ledger::claim(&self.inner.ledger, node, &request.key, request.lease);
        let Some(claim) = claim else {
            // The vote of an earlier attempt under this lease is still in flight.
            let engaged = Err(BackendError::unknown(Cause::Engaged));
            return self.election.cast(node, engaged, Instant::now());
        };
        self.election.reopen(node);
        let vote = Arc::clone(&self.inner.nodes[node]).vote(request, fence);
        let inner = Arc::clone(&self.inner);
        let vote = async move {
            let answer = vote.await;
            // The TTL at the node starts when the vote takes effect, which may be now or later.
            let now = Instant::now();
            let owes = match &answer {
                Ok(Acquired::Granted { .. }) => claim.granted(now + ttl),
                Ok(Acquired::Busy { .. }) => claim.out(),
                Err(error) if error.may_have_taken_effect() => claim.granted(now + LATE + ttl),
                Err(_) => claim.unchanged(),
            };
            // It was released while its vote was in flight, so the release is sent after it.
            if owes {
                inner.repeat_releases(node);
            }
            answer
        };
        self.votes.push(node, Box::pin(vote));
    }

    /// Collects replies until they decide the standing, for at most one node timeout.
    async fn answers(&mut self, standing: impl Fn(&Election) -> Standing) -> Option<u64> {
        let deadline = Instant::now() + self.inner.node_timeout;
        loop {
            if let Poll::Ready(elected) = standing(&self.election) {
                return elected;
            }
            let answers = self.votes.next_until(deadline).await;
            if answers.is_empty() {
                self.election.close();
            }
            let now = Instant::now();
            for (node, answer) in answers {
                self.election.cast(node, answer, now);
            }
        }
    }

    /// Releases the lease, and waits for each node that may have granted it, for at most one node timeout.
    async fn concede(self, began: Instant) -> Vote {
        let inner = &self.inner;
        // The lease is disowned first, so that each vote in flight is released when its reply arrives.
        let lease = Release::new(self.request.key, self.request.lease);
        let (mut releases, _) = inner.recall(slice::from_ref(&lease));
        inner.finish(self.votes);
        let deadline = Instant::now() + inner.node_timeout;
        while !releases.next_until(deadline).await.is_empty() {}
        inner.finish(releases);
        let is_settled = inner.ledger.lock().is_out(&lease.key, lease.lease);
        if self.election.is_split() {
            // Several processes may each hold a part of the nodes, and retry at the same moment. Random
            // pauses separate them.
            let pause = began.elapsed() * u32::try_from(inner.nodes.len()).unwrap_or(u32::MAX);
            Timer::at(Instant::now() + up_to(pause.min(inner.node_timeout))).await;
        }
        self.election.defeat(Instant::now(), !is_settled)
    }
}
