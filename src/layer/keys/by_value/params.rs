//! The parameters of the axum route that matches a request.

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRequestParts, MatchedPath, OriginalUri, RawPathParams};
use http::request::Parts;

use crate::InvalidKey;

const OUTSIDE: &str = "path parameters exist only inside an axum `Router`; put the layer on its routes, with \
                       `Router::route_layer`";

/// Returns the decoded parameters.
pub(super) fn read(request: &mut Parts) -> Result<RawPathParams, InvalidKey> {
    match ready_at_once(RawPathParams::from_request_parts(request, &())) {
        Ok(params) => Ok(params),
        Err(RawPathParamsRejection::InvalidUtf8InPathParam(_)) => {
            Err(InvalidKey::Undecodable("path".into()))
        }
        Err(_) if is_in_router(request) => Err(InvalidKey::NoRoute),
        Err(_) => Err(InvalidKey::Setup(OUTSIDE.into())),
    }
}

/// Returns the value of the parameter, which the route must have exactly once.
pub(super) fn value<'p>(
    params: &'p RawPathParams,
    name: &str,
    request: &Parts,
) -> Result<&'p str, InvalidKey> {
    let mut named = params.iter().filter(|(other, _)| *other == name);
    match (named.next(), named.next()) {
        (Some((_, value)), None) => Ok(value),
        (first, _) => Err(invalid(name, first.is_some(), request)),
    }
}

fn invalid(name: &str, is_repeated: bool, request: &Parts) -> InvalidKey {
    // A fallback has no matched path, and its parameters are empty.
    let Some(route) = request.extensions.get::<MatchedPath>() else {
        return InvalidKey::NoRoute;
    };
    let route = route.as_str();
    let problem = if is_repeated {
        format!(
            "the route `{route}` has the path parameter `{name}` twice; rename one of them, also if a nested router \
             adds it"
        )
    } else {
        format!(
            "the route `{route}` has no path parameter `{name}`; lock by a parameter that it has, or put the layer \
             on other routes"
        )
    };
    InvalidKey::Setup(problem.into())
}

/// Returns `true` if an axum router has received the request.
fn is_in_router(request: &Parts) -> bool {
    request.extensions.get::<OriginalUri>().is_some()
}

/// Returns the output of a future that never waits.
fn ready_at_once<F: Future>(future: F) -> F::Output {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => unreachable!("BUG: axum reads path parameters without waiting"),
    }
}
