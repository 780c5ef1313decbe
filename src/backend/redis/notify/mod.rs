//! Notifies waiters of releases, over one subscription connection per server.
//!
//! | file | responsibility |
//! |---|---|
//! | `notifier` | the handle |
//! | `shared` | what the handle and the task share |
//! | `task` | the task that owns the connection |
//! | `rejections` | the rejected channels and their backoff |
//! | `subscribe` | begins and ends the subscriptions to channels |
//! | `topic` | one watched channel: its waiters and managers |
//! | `topics` | all watched channels: what to subscribe to and to leave, and where a message goes |
//! | `subscription` | the channels of one lock, and its waiters |
//! | `pub_sub` | the commands of plain and of sharded channels |
//! | `publish` | the kind of messages, as the program selects it |

mod notifier;
mod pub_sub;
mod publish;
mod rejections;
mod shared;
mod subscribe;
mod subscription;
mod task;
mod topic;
mod topics;

pub use publish::Publish;

pub(crate) use crate::backend::recovery::Recovery;
pub(crate) use notifier::Notifier;
pub(crate) use pub_sub::PubSub;
pub(crate) use subscription::Watcher;
