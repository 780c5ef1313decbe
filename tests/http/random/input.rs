//! Requests as bytes, which a fuzzer changes.
//!
//! The first byte of the input selects the layer and the method, the second one the version and the end of the body.
//! The first line is the URI, and each further line is a header. The body follows an empty line.

use std::cell::OnceCell;

use axum::body::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use tokio::runtime::{Builder, Runtime};

use super::check::{Apps, End, Outcome, Sent};
use super::routes::ALL;

const METHODS: [Method; 7] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::OPTIONS,
    Method::CONNECT,
];
const VERSIONS: [Version; 3] = [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2];
const ENDS: [End; 3] = [End::Complete, End::Failed, End::Missing];
/// The length of a frame.
const FRAME: usize = 16;

thread_local! {
    static APPS: OnceCell<(Runtime, Apps)> = const { OnceCell::new() };
}

/// Splits at the first line end, which is missing in the last line.
fn line(input: &[u8]) -> (&[u8], &[u8]) {
    let end = input.iter().position(|&byte| byte == b'\n');
    end.map_or((input, &[]), |end| (&input[..end], &input[end + 1..]))
}

fn header(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = line.iter().position(|&byte| byte == b':')?;
    let name = HeaderName::from_bytes(&line[..colon]).ok()?;
    Some((name, HeaderValue::from_bytes(&line[colon + 1..]).ok()?))
}

fn request(layer: u8, body: u8, input: &[u8]) -> Option<Sent> {
    let (uri, mut rest) = line(input);
    let mut headers = HeaderMap::new();
    loop {
        let (next, after) = line(rest);
        rest = after;
        if next.is_empty() {
            break;
        }
        let (name, value) = header(next)?;
        headers.try_append(name, value).ok()?;
    }
    let (layer, body) = (usize::from(layer), usize::from(body));
    Some(Sent {
        method: METHODS[layer / ALL.len() % METHODS.len()].clone(),
        uri: uri.try_into().ok()?,
        version: VERSIONS[body / ENDS.len() % VERSIONS.len()],
        headers,
        frames: rest.chunks(FRAME).map(Bytes::copy_from_slice).collect(),
        end: ENDS[body % ENDS.len()],
    })
}

/// Sends the request of an input, and checks it. Returns `None` if a server rejects it as HTTP.
pub(crate) fn check(input: &[u8]) -> Option<Outcome> {
    let [layer, body, input @ ..] = input else {
        return None;
    };
    let sent = request(*layer, *body, input)?;
    APPS.with(|apps| {
        let (runtime, apps) = apps.get_or_init(|| {
            let mut builder = Builder::new_current_thread();
            let runtime = builder.enable_all().start_paused(true).build();
            (runtime.expect("a runtime"), Apps::new())
        });
        Some(runtime.block_on(apps.check(usize::from(*layer) % ALL.len(), &sent)))
    })
}
