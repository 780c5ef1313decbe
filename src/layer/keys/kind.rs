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

impl Sealed for super::ByHeader {}
impl WithKind for super::ByHeader {}
impl Sealed for super::ByQuery {}
impl WithKind for super::ByQuery {}
#[cfg(feature = "axum")]
impl Sealed for super::ByPathParam {}
#[cfg(feature = "axum")]
impl WithKind for super::ByPathParam {}
#[cfg(feature = "axum")]
impl Sealed for super::ByPathParams {}
#[cfg(feature = "axum")]
impl WithKind for super::ByPathParams {}
#[cfg(feature = "axum")]
impl<T> Sealed for super::ByPathParamAs<T> {}
#[cfg(feature = "axum")]
impl<T> WithKind for super::ByPathParamAs<T> {}
