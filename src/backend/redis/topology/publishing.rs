//! Whether a server accepts the messages of releases.
//!
//! A script ignores a message that the server rejects, because the lock is free. Its reply contains the rejection, and
//! a task then repeats the message until the server accepts it. A repeated message is a hint without a release.
//! Without messages, waiters on the server poll.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Cmd;
use tokio::time::sleep;

use super::node::Node;
use crate::backend::redis::command::CommandError;
use crate::backend::redis::connection::{Outage, Request, Resend};
use crate::backend::{BackendError, BackendErrorKind};
use crate::jitter::jittered;
use crate::observe::Part;

/// The time between two repetitions.
const INTERVAL: Duration = Duration::from_millis(800);

pub(crate) struct Publishing {
    outage: Outage,
    /// A task repeats a rejected message.
    rejected: AtomicBool,
}

impl Publishing {
    pub(super) fn new(address: &str) -> Self {
        Self {
            outage: Outage::new(
                Part::Notifications,
                "releases are not published",
                "releases are published again",
                address,
            ),
            rejected: AtomicBool::new(false),
        }
    }

    pub(super) fn is_rejected(&self) -> bool {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Records a rejected message. Returns `true` if no task repeats one.
    pub(super) fn reject(&self) -> bool {
        !self.rejected.swap(true, Ordering::Relaxed)
    }
}

/// Starts the task that repeats `messages` over a connection of the node.
pub(super) fn start(node: &Arc<Node>, index: usize, messages: Vec<Cmd>) {
    let background = node.connections[index].network().background;
    let repeating = Repeating {
        node: Arc::downgrade(node),
        index,
        messages,
    };
    background.spawn(repeating.run());
}

/// The task. If its runtime drops it, the next rejection starts another.
struct Repeating {
    /// Weak, so that the task ends with the backend, or when the node leaves the cluster.
    node: Weak<Node>,
    index: usize,
    messages: Vec<Cmd>,
}

impl Drop for Repeating {
    fn drop(&mut self) {
        if let Some(node) = self.node.upgrade() {
            node.publishing.rejected.store(false, Ordering::Relaxed);
        }
    }
}

impl Repeating {
    async fn run(self) {
        while let Some(node) = self.node.upgrade() {
            match self.publish(&node).await {
                Ok(()) => return node.publishing.outage.end(),
                Err(error) if error.kind() == BackendErrorKind::Misconfigured => {
                    node.publishing.outage.begin(&error);
                }
                // The server is unavailable, which its commands report.
                Err(_) => {}
            }
            drop(node);
            sleep(jittered(INTERVAL)).await;
        }
    }

    async fn publish(&self, node: &Node) -> Result<(), BackendError> {
        let connection = &node.connections[self.index];
        for message in &self.messages {
            match connection
                .send(&Request::new(message, Resend::Repeatable), false)
                .await
            {
                // Another node has the channel.
                Ok(_) | Err(CommandError::Elsewhere { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
