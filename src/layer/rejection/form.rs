//! The form of a rejection that the client can read.

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};

/// How a rejection is written for this client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// `application/problem+json`, RFC 9457.
    Problem,
    /// `text/plain`, for a client that accepts only that.
    Text,
    /// A gRPC response of trailers only.
    Grpc,
}

/// What the middleware remembers of a request after the inner service received it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestInfo {
    pub(crate) form: Form,
    /// The response has no body.
    pub(crate) head: bool,
    /// After a successful response, the connection is a tunnel.
    pub(crate) connect: bool,
}

impl RequestInfo {
    /// The form for a rejection that is created without its request.
    pub(crate) const UNKNOWN: Self = Self {
        form: Form::Problem,
        head: false,
        connect: false,
    };

    pub(crate) fn new(method: &Method, headers: &HeaderMap) -> Self {
        Self {
            form: Form::for_client(headers),
            head: method == Method::HEAD,
            connect: method == Method::CONNECT,
        }
    }
}

impl Form {
    fn for_client(headers: &HeaderMap) -> Self {
        if is_grpc(headers) {
            Self::Grpc
        } else if accepts_only_text(headers) {
            Self::Text
        } else {
            Self::Problem
        }
    }
}

/// `application/grpc`, also with a message format: `application/grpc+proto`. Not
/// `application/grpc-web`, which is another protocol.
fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type
        .and_then(|value| value.split_at_checked(GRPC.len()))
        .filter(|(media_type, _)| media_type.eq_ignore_ascii_case(GRPC))
        .is_some_and(|(_, rest)| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// Returns `true` if the client accepts `text/plain` and no kind of JSON.
fn accepts_only_text(headers: &HeaderMap) -> bool {
    let mut text = false;
    for value in headers.get_all(ACCEPT) {
        let ranges = value.to_str().unwrap_or_default().split(',');
        for range in ranges.filter(|range| !is_refused(range)) {
            let media_type = range.split(';').next().unwrap_or_default().trim();
            match media_type.to_ascii_lowercase().as_str() {
                "text/plain" | "text/*" => text = true,
                "*/*" | "application/*" | "application/json" | "application/problem+json" => {
                    return false;
                }
                _ => {}
            }
        }
    }
    text
}

/// Whether the media range carries a quality of zero: "anything but this".
fn is_refused(range: &str) -> bool {
    range.split(';').skip(1).any(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        name.trim().eq_ignore_ascii_case("q")
            && value
                .trim()
                .parse::<f32>()
                .is_ok_and(|quality| quality == 0.0)
    })
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn form(headers: &[(&str, &str)]) -> Form {
        let mut request = Request::get("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).expect("a valid request").into_parts();
        Form::for_client(&parts.headers)
    }

    #[test]
    fn text_is_only_for_clients_without_json() {
        for accept in [
            "text/plain",
            "text/*",
            "TEXT/Plain; q=0.5",
            "text/html, text/plain",
        ] {
            assert_eq!(form(&[("accept", accept)]), Form::Text, "{accept}");
        }
        assert_eq!(
            form(&[("accept", "text/plain, application/json;q=0, */*; q=0.000")]),
            Form::Text
        );
        for accept in [
            "*/*",
            "text/plain, */*;q=0.1",
            "text/html",
            "text/plain;q=0",
            "application/json, text/plain",
        ] {
            assert_eq!(form(&[("accept", accept)]), Form::Problem, "{accept}");
        }
        assert_eq!(form(&[]), Form::Problem);
        assert_eq!(
            form(&[("accept", "text/plain"), ("accept", "application/*")]),
            Form::Problem
        );
    }

    #[test]
    fn grpc_is_known_by_its_content_type() {
        for content_type in [
            "application/grpc",
            "application/grpc+proto",
            "application/grpc; x=y",
        ] {
            assert_eq!(
                form(&[("content-type", content_type)]),
                Form::Grpc,
                "{content_type}"
            );
        }
        for content_type in ["application/grpc-web", "application/json"] {
            assert_eq!(
                form(&[("content-type", content_type)]),
                Form::Problem,
                "{content_type}"
            );
        }
    }
}
