//! The buffer in which a key is encoded before its length is known, so that a request allocates once for it.

use std::cell::Cell;

thread_local! {
    static TEXT: Cell<String> = const { Cell::new(String::new()) };
}

/// Returns an empty string. It is a new one if the buffer is in use.
pub(super) fn take() -> String {
    TEXT.try_with(Cell::take).unwrap_or_default()
}

/// Keeps a buffer of at most `max_capacity` bytes for the next key.
pub(super) fn put_back(mut text: String, max_capacity: usize) {
    // Otherwise one long name would occupy memory in each thread forever.
    if text.capacity() <= max_capacity {
        text.clear();
        TEXT.try_with(|scratch| scratch.set(text)).unwrap_or(());
    }
}
