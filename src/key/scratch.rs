//! The buffer in which a key is encoded before its length is known. A request then allocates for it once.

use std::cell::Cell;

thread_local! {
    static TEXT: Cell<String> = const { Cell::new(String::new()) };
}

/// An empty string. Building a key while another one is built gets a fresh one.
pub(super) fn take() -> String {
    TEXT.try_with(Cell::take).unwrap_or_default()
}

/// Keeps a buffer of at most `max_capacity` bytes for the next key.
pub(super) fn put_back(mut text: String, max_capacity: usize) {
    // One huge name must not cost every thread its size for ever.
    if text.capacity() <= max_capacity {
        text.clear();
        TEXT.try_with(|scratch| scratch.set(text)).unwrap_or(());
    }
}
