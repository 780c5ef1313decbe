//! Random requests: what a client can send, and what it should not.

use axum::body::Bytes;
use fastrand::Rng;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

use super::check::{End, Sent};

const PIECES: [&str; 44] = [
    "/",
    "/",
    "/",
    "/",
    "a",
    "b",
    "7",
    "07",
    "+7",
    "-1",
    ".",
    "..",
    "%2e",
    "%2E%2e",
    "%2F",
    "%2f",
    "%25",
    "%252F",
    "%",
    "%4",
    "%zz",
    "%FF",
    "%C3%BC",
    "%c3%bc",
    "ü",
    "%00",
    "@",
    "%40",
    ":",
    "{",
    "}",
    "*",
    "+",
    "%20",
    ";v=1",
    "%3B",
    "=",
    "&",
    "orders",
    "a/b",
    "//",
    "~",
    "18446744073709551616",
    "%F0%9F%92%A9",
];
const PREFIXES: [&str; 9] = [
    "/orders/",
    "/orders/",
    "/orders/7",
    "/files/",
    "/nested/",
    "/other/",
    "//orders/",
    "/",
    "",
];
/// Paths with one value of a parameter, in each spelling.
const WHOLE: [&str; 8] = [
    "/orders/7",
    "/orders/07",
    "/orders/%37",
    "/orders/%2B7",
    "/orders/8",
    "/files/7",
    "/nested/7",
    "/nested/%30%37",
];
const ENDS: [&str; 8] = ["", "", "", "", "/", "//", "/.", "%2F"];
const ORIGINS: [&str; 3] = [
    "http://localhost",
    "https://user@example.org:8443",
    "http://[::1]:80",
];
const NAMES: [&str; 7] = ["id", "id", "id", "i%64", "ID", "x", ""];
const HEADERS: [&str; 10] = [
    "x-id",
    "x-id",
    "x-id",
    "accept",
    "content-type",
    "prefer",
    "host",
    "expect",
    "content-length",
    "connection",
];
const VALUES: [&[u8]; 16] = [
    b"7",
    b"8",
    b"",
    b"\xff",
    b"\xc3\xbc\x80",
    b"a\tb",
    b"text/plain",
    b"application/grpc",
    b"application/json;q=0",
    b"wait=1",
    b"wait=18446744073709551616",
    b"*/*",
    b"a,b",
    b"application/problem+json",
    b"upgrade",
    b"keep-alive, Upgrade",
];
const METHODS: [&str; 10] = [
    "GET", "HEAD", "POST", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "MKCOL",
];
const VERSIONS: [Version; 3] = [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2];
const ACCOUNTS: [&str; 13] = [
    r#""7""#,
    r#""7""#,
    r#""8""#,
    r#""\u0037""#,
    r#""ü:{}""#,
    r#""a/../b""#,
    r#""\u0000""#,
    r#""""#,
    r#""\ud800""#,
    "null",
    "7",
    r#"["7"]"#,
    "{}",
];
const MEMBERS: [&str; 6] = ["from", "to", "to", "from", "FROM", "x"];

/// Returns a random request, or `None` if a server rejects it as HTTP.
pub(super) fn request(rng: &mut Rng) -> Option<Sent> {
    let (method, uri) = target(rng)?;
    let body = body(rng);
    Some(Sent {
        method,
        uri,
        version: one(rng, &VERSIONS),
        headers: headers(rng),
        frames: frames(rng, &body),
        end: match rng.u32(..10) {
            0 => End::Failed,
            1 => End::Missing,
            _ => End::Complete,
        },
    })
}

fn one<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

fn text(rng: &mut Rng, most: usize) -> String {
    (0..rng.usize(..=most)).map(|_| one(rng, &PIECES)).collect()
}

/// Returns `true` once in `n` times.
fn rarely(rng: &mut Rng, n: u32) -> bool {
    rng.u32(..n) == 0
}

/// Returns the method and the target, in each of the forms of RFC 9112 §3.2.
fn target(rng: &mut Rng) -> Option<(Method, Uri)> {
    if rarely(rng, 50) {
        let uri = one(rng, &["localhost:80", "example.org:443", "7"]);
        return Some((Method::CONNECT, uri.parse().ok()?));
    }
    if rarely(rng, 50) {
        return Some((Method::OPTIONS, Uri::from_static("*")));
    }
    let mut uri = match rarely(rng, 4) {
        true => one(rng, &WHOLE).to_owned(),
        false => one(rng, &PREFIXES).to_owned() + &text(rng, 3),
    };
    if rarely(rng, 100) {
        // Longer than a key, and than a page.
        let lengths = [500, 520, 5_000, 60_000];
        uri += &one(rng, &["a", "%61", "/", "%C3%BC"]).repeat(one(rng, &lengths) / 3);
    }
    uri += one(rng, &ENDS);
    if rng.bool() {
        let pairs = (0..rng.usize(..4)).map(|_| match rarely(rng, 8) {
            true => one(rng, &NAMES).to_owned(),
            false => format!("{}={}", one(rng, &NAMES), text(rng, 2)),
        });
        let pairs: Vec<_> = pairs.collect();
        uri += "?";
        uri += &pairs.join("&");
    }
    // As a client sends it to a proxy. Servers form it from the pseudo-headers of HTTP/2.
    if rarely(rng, 5) {
        uri.insert_str(0, one(rng, &ORIGINS));
    }
    let method = one(rng, &METHODS).parse().unwrap();
    Some((method, uri.parse().ok()?))
}

fn headers(rng: &mut Rng) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if !rarely(rng, 4) {
        let json = HeaderValue::from_static("application/json");
        headers.insert("content-type", json);
    }
    if rng.bool() {
        headers.insert("x-id", HeaderValue::from_static("7"));
    }
    for _ in 0..rng.usize(..4) {
        let name = HeaderName::from_static(one(rng, &HEADERS));
        let value = HeaderValue::from_bytes(one(rng, &VALUES)).unwrap();
        headers.append(name, value);
    }
    headers
}

/// Returns a body that mostly resembles a transfer.
fn body(rng: &mut Rng) -> Vec<u8> {
    if rarely(rng, 6) {
        return text(rng, 5).into_bytes();
    }
    let members = (0..rng.usize(1..=3)).map(|at| {
        let name = if rarely(rng, 4) {
            one(rng, &MEMBERS)
        } else {
            MEMBERS[at]
        };
        format!("\"{name}\":{}", one(rng, &ACCOUNTS))
    });
    let mut body = format!("{{{}}}", members.collect::<Vec<_>>().join(",")).into_bytes();
    match rng.u32(..20) {
        0 => body.truncate(rng.usize(..body.len())),
        1 => body.extend(b" \n\t "),
        2 => body.extend(b"{}"),
        3 => body[rng.usize(..7)] = 0xff,
        4 => body = b"[".repeat(rng.usize(..300)),
        5 => body.extend(vec![b' '; rng.usize(..10_000)]),
        _ => {}
    }
    body
}

fn frames(rng: &mut Rng, body: &[u8]) -> Vec<Bytes> {
    let length = one(rng, &[1, 7, usize::MAX, usize::MAX]);
    let mut frames: Vec<_> = body.chunks(length).map(Bytes::copy_from_slice).collect();
    if rarely(rng, 10) {
        frames.insert(rng.usize(..=frames.len()), Bytes::new());
    }
    frames
}
