//! The routes with data. Keys are in bodies, not in targets, which proxies log.

mod force;
mod history;
mod holders;
mod inspect;
mod response;
mod stream;
mod summary;

pub(super) use force::force_release;
pub(super) use history::{history, incidents};
pub(super) use holders::holders;
pub(super) use inspect::inspect;
pub(super) use response::{not_found, refuse};
pub(super) use stream::stream;
pub(super) use summary::summary;
