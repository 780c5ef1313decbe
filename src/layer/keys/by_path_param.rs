//! A parameter of the axum route as the key.

use std::borrow::Cow;

use http::request::Parts;

use super::extractor::KeyExtractor;
use crate::{InvalidKey, LockKey, LockKeys};

/// The key of [`LockLayer::by_path_param`](crate::LockLayer::by_path_param).
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
#[derive(Debug, Clone)]
pub struct ByPathParam {
    name: Cow<'static, str>,
}

impl ByPathParam {
    pub(in crate::layer) fn new(name: Cow<'static, str>) -> Self {
        Self { name }
    }
}

impl KeyExtractor for ByPathParam {
    fn extract(&self, request: &Parts) -> Result<Option<LockKeys>, InvalidKey> {
        let (mut copy, ()) = http::Request::new(()).into_parts();
        copy.extensions = request.extensions.clone();
        self.extract_in_place(&mut copy)
    }

    fn extract_in_place(&self, request: &mut Parts) -> Result<Option<LockKeys>, InvalidKey> {
        use axum::extract::rejection::RawPathParamsRejection;
        use axum::extract::{FromRequestParts, RawPathParams};

        let what = || format!("path parameter `{}`", self.name);
        let params = match ready_at_once(RawPathParams::from_request_parts(request, &())) {
            Ok(params) => params,
            Err(RawPathParamsRejection::InvalidUtf8InPathParam(_)) => {
                return Err(InvalidKey::undecodable(what()));
            }
            Err(_) => return Err(InvalidKey::missing(what())),
        };
        let mut named = params.iter().filter(|(name, _)| *name == self.name);
        let (_, value) = named.next().ok_or_else(|| InvalidKey::missing(what()))?;
        if named.next().is_some() {
            return Err(InvalidKey::ambiguous(what()));
        }
        Ok(Some(LockKey::from_parts([&*self.name, value]).into()))
    }
}

/// The output of a future that never waits.
fn ready_at_once<F: Future>(future: F) -> F::Output {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => unreachable!("axum reads path parameters without waiting"),
    }
}
