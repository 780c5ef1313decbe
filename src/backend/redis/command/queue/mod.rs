//! The calls that end a lease, or wait for a lock in its queue.
//!
//! While a slot is moving, the body of a lock and its queue may be at different nodes. Then there is no queue:
//! a lock is acquired and released as [`scattered`](super::scattered) describes, and waiters poll. The same applies
//! to a queue that the ACL denies, since its rules can permit a lock and forget its queue.
//!
//! | file | responsibility |
//! |---|---|
//! | `contend` | waits for a lock in its queue |
//! | `release` | releases leases, leaves queues, and undoes acquires |
//! | `keep` | keeps a lease unless another process waits |
//! | `downgrade` | makes an exclusive lease shared |
//! | `holder` | reads the holder of a lock, and releases its lock |
//! | `arguments` | the arguments that these calls share |

mod arguments;
mod contend;
mod downgrade;
mod holder;
mod keep;
mod release;
