//! What a program configures: [`LockLayer`], its constructors and its settings.

mod constructors;
mod layer;
mod options;
mod requests;
mod settings;
mod unlocked;

pub use layer::LockLayer;
pub use options::OnLost;
pub(super) use options::{BoxedBody, Options, assert_valid};
pub(super) use unlocked::mark_unlocked;
pub use unlocked::{OnUnavailable, Unlocked};
