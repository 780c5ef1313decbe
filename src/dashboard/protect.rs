//! The checks of each request, and the headers of each response.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};
use http::uri::Authority;
use http::{Method, StatusCode};

use super::api::refuse;
use super::board::Board;
use super::headers;
use super::operator::Operator;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// A form of another site cannot send this header.
const MARK: HeaderName = HeaderName::from_static("x-tower-lock");

/// The text of the 403 response, for operators and for the author of the service.
const CLOSED: &str = "\
The lock dashboard is closed, because no operator is identified.

A middleware of the service must authenticate the request and insert
`tower_lock::dashboard::Operator` into its extensions, for instance:

    let board = dashboard::router(locks).layer(middleware::from_fn(require_operator));

See `guide::dashboard` in the documentation of tower-lock. For local use,
`Dashboard::unprotected` opens the dashboard to every client.
";

pub(super) async fn protect(
    State(board): State<Arc<Board>>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = match check(&board, &request) {
        Ok(()) => {
            board.publisher.ensure_running();
            next.run(request).await
        }
        Err(response) => *response,
    };
    headers::insert(response.headers_mut(), &board.instance_header);
    response
}

fn check(board: &Board, request: &Request) -> Result<(), Box<Response>> {
    if board.protected && request.extensions().get::<Operator>().is_none() {
        return Err(Box::new((StatusCode::FORBIDDEN, CLOSED).into_response()));
    }
    let is_same_site = match *request.method() {
        Method::GET | Method::HEAD => is_read_here(request),
        _ => is_sent_by_page(board, request),
    };
    match is_same_site {
        true => Ok(()),
        false => Err(Box::new(refuse(
            StatusCode::FORBIDDEN,
            "the request does not come from the page of this dashboard",
        ))),
    }
}

/// Another site can open the page, but cannot read data through it.
fn is_read_here(request: &Request) -> bool {
    let site = text(request.headers(), &FETCH_SITE);
    !request.uri().path().contains("/api/") || matches!(site, None | Some("same-origin" | "none"))
}

/// Without a session there is no token to steal or to lose: only the page of this origin can send all of these
/// headers.
fn is_sent_by_page(board: &Board, request: &Request) -> bool {
    let headers = request.headers();
    let is_json = text(headers, &CONTENT_TYPE) == Some("application/json");
    let is_marked = text(headers, &MARK) == Some("1");
    let is_same_site = matches!(text(headers, &FETCH_SITE), None | Some("same-origin"));
    is_json && is_marked && is_same_site && is_own_origin(board, request)
}

fn is_own_origin(board: &Board, request: &Request) -> bool {
    let Some(origin) = text(request.headers(), &ORIGIN) else {
        return false;
    };
    if let Some(expected) = &board.origin {
        return origin.eq_ignore_ascii_case(expected);
    }
    // HTTP/2 has the host in the target.
    let host = text(request.headers(), &HOST);
    let host = host.or_else(|| request.uri().authority().map(Authority::as_str));
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    authority.is_some() && authority == host
}

/// Returns the value of a header. A repeated or unreadable one is empty text, which no check accepts.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    // Two values could be read differently by two programs.
    if values.next().is_some() {
        return Some("");
    }
    Some(value.to_str().unwrap_or(""))
}
