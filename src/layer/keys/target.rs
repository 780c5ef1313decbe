//! Values that carry their keys.

use crate::{LockKey, LockKeys};

/// A value that supplies the keys to lock, such as a command in the body of a request, or a tenant in its
/// extensions.
///
/// [`Locked`](crate::Locked) and [`LockLayer::by_extension`](crate::LockLayer::by_extension) use it. Several keys are
/// acquired all or none, in an order that cannot deadlock.
///
/// ```
/// use tower_lock::{LockKey, LockKeys, LockTarget};
///
/// struct Transfer {
///     from: String,
///     to: String,
/// }
///
/// impl LockTarget for Transfer {
///     fn lock_keys(&self) -> LockKeys {
///         LockKeys::from([
///             LockKey::from_parts(["account", &self.from]),
///             LockKey::from_parts(["account", &self.to]),
///         ])
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` supplies no keys to lock",
    label = "not a `LockTarget`",
    note = "write `impl LockTarget for ...` for your own type, with `lock_keys` returning e.g. \
            `LockKey::from_parts([\"account\", &self.id]).into()`; `Json`, `Form`, `Query`, `Path` \
            and `Extension` pass it on from the type inside"
)]
pub trait LockTarget {
    /// Returns the keys to lock.
    fn lock_keys(&self) -> LockKeys;
}

impl LockTarget for LockKey {
    fn lock_keys(&self) -> LockKeys {
        self.into()
    }
}

impl LockTarget for LockKeys {
    fn lock_keys(&self) -> LockKeys {
        self.clone()
    }
}
