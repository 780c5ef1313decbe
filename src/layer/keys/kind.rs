//! The kind of a key: the first part of a key from a value of the request.

/// A source of keys `[kind, value]`, whose kind [`LockLayer::kind`](crate::LockLayer::kind) replaces.
#[diagnostic::on_unimplemented(
    message = "the keys of `{Self}` have no kind",
    label = "`kind` is for keys from a parameter, a header or the query",
    note = "call it right after `by_path_param`, `by_path_param_as`, `by_path_params`, `by_header`, `by_host` or `by_query`"
)]
pub trait WithKind: Sealed {}

/// Only the sources of this crate see the kind.
pub trait Sealed {}

macro_rules! with_kind {
    ($($source:ident $(<$value:ident>)?),+) => {$(
        impl$(<$value>)? Sealed for super::$source$(<$value>)? {}
        impl$(<$value>)? WithKind for super::$source$(<$value>)? {}
    )+};
}

with_kind!(ByHeader, ByQuery);
#[cfg(feature = "axum")]
with_kind!(ByPathParam, ByPathParams, ByPathParamAs<T>);
