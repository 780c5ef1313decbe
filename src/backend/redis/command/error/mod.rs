//! Errors of a command, classified by what the engine must know about them.
//!
//! | file | responsibility |
//! |---|---|
//! | `cause` | the causes that this crate detected |
//! | `server_error` | the meaning of a server's errors |
//! | `rejection` | what a rejection concerns: all keys, memory, a denial |
//! | `command_error` | the reason that a command has no usable reply |

mod cause;
mod command_error;
mod rejection;
mod server_error;

pub(super) use cause::no_ttl;
pub(crate) use cause::{Cause, unavailable, unexpected};
pub(crate) use command_error::{CommandError, check};
pub(crate) use rejection::is_reply;
pub(super) use rejection::{concerns_all_keys, is_denial, is_out_of_memory};
pub(super) use server_error::refusal;
pub(crate) use server_error::{is_demoted, not_connected, not_dialed};
