//! The scope of a request: which locks it keeps, and until when.

mod acquire;
mod ends;
mod errors;
mod hold;
mod keep;
mod loss;
mod nesting;
mod settings;
pub(crate) mod support;
