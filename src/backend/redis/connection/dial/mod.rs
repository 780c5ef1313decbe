//! Opens connections.
//!
//! | file | responsibility |
//! |---|---|
//! | `connector` | connections for commands |
//! | `listen` | connections for subscriptions |
//! | `opening` | the server that a connection is opened to, and whether it is the primary |
//! | `pools` | the pool of the current server |
//! | `spread` | whether the address is several servers |

mod connector;
mod listen;
mod opening;
mod pools;
mod spread;

pub(crate) use connector::{Connector, Origin, without_timeout};
pub(crate) use listen::{Messages, listen};
pub(crate) use spread::Spread;
