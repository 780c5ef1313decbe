//! The names of locks, encoded injectively.

mod encode;
mod invalid;
mod lock_key;
mod lock_keys;
mod map;
mod parts;
mod path;
mod rare;
mod scratch;

pub use invalid::InvalidKey;
pub use lock_key::LockKey;
pub use lock_keys::LockKeys;
pub(crate) use map::KeyMap;
pub use parts::{KeyPart, KeyParts};
