//! The length of a body after some of it was read.

use http_body::SizeHint;

/// Returns the hint for `read` bytes and the rest of a body.
pub(super) fn after(read: usize, rest: &SizeHint) -> SizeHint {
    let read = read as u64;
    let mut hint = SizeHint::new();
    hint.set_lower(rest.lower().saturating_add(read));
    if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
        hint.set_upper(upper);
    }
    hint
}
