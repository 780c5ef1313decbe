//! What a program configures: [`LockLayer`], its constructors and its settings.

mod constructors;
mod layer;
mod options;
mod requests;
mod settings;
mod unlocked;

pub use layer::LockLayer;
pub use options::OnLost;
pub(super) use options::{BoxedBody, Options, Wait, assert_valid};
pub use unlocked::{OnUnavailable, Unlocked};
pub(super) use unlocked::{Passed, mark_unlocked};
