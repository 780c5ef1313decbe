//! The kind of a key: the first part of a key from a value of the request.

use std::borrow::Cow;

/// A source of keys `[kind, value]`, whose kind [`LockLayer::kind`](crate::LockLayer::kind) replaces.
#[diagnostic::on_unimplemented(
    message = "the keys of `{Self}` have no kind",
    label = "`kind` is for keys from a parameter, a header or the query",
    note = "call it right after `by_path_param`, `by_path_param_as`, `by_path_params`, `by_header` or `by_query`"
)]
pub trait WithKind {
    #[doc(hidden)]
    #[must_use]
    fn with_kind(&self, kind: Cow<'static, str>) -> Self;
}

macro_rules! with_kind {
    ($($(#[$attribute:meta])* ($($generics:tt)*) $source:ty),+) => {$(
        $(#[$attribute])*
        impl $($generics)* WithKind for $source {
            fn with_kind(&self, kind: Cow<'static, str>) -> Self {
                let mut source = self.clone();
                source.kind = Some(kind);
                source
            }
        }
    )+};
}

with_kind!(
    () super::ByHeader,
    () super::ByQuery,
    #[cfg(feature = "axum")]
    () super::ByPathParam,
    #[cfg(feature = "axum")]
    () super::ByPathParams,
    #[cfg(feature = "axum")]
    (<T>) super::ByPathParamAs<T>
);
