//! The texts of errors with all their causes.

use std::error::Error;

/// Returns the text of an error and all its causes.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<_> = causes(error).map(ToString::to_string).collect();
    texts.join(": ")
}

/// Returns the `Debug` and `Display` texts of an error and of all its causes.
pub(crate) fn debug_chain(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<_> = causes(error)
        .map(|error| format!("{error:?} {error}"))
        .collect();
    texts.join(" ")
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (**error).source())
}
