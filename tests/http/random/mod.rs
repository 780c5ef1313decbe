//! 100,000 random requests against the constructors of `LockLayer`, with fixed seeds.
//!
//! The program is right, so no answer is a 5xx. A request runs only under its lock, and the handler sees the value
//! that is in the key. A copy of each request that ran is kept out while the key is held. `fuzz/` checks the same.

mod check;

use fastrand::Rng;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use self::check::{ALL, Apps, Head};

const SEEDS: std::ops::Range<u64> = 0..100;
const REQUESTS_PER_SEED: usize = 1_000;

const PIECES: [&str; 40] = [
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
    "%",
    "%4",
    "%zz",
    "%FF",
    "%C3%BC",
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
    ";",
    "=",
    "orders",
    "a/b",
    "//",
    "~",
    "18446744073709551616",
    "%F0%9F%92%A9",
];
const PREFIXES: [&str; 7] = [
    "/orders/", "/orders/", "/files/", "/nested/", "/other/", "/", "",
];
const NAMES: [&str; 5] = ["id", "i%64", "ID", "x", ""];
const HEADERS: [&str; 7] = [
    "x-id",
    "x-id",
    "accept",
    "content-type",
    "prefer",
    "host",
    "expect",
];
const VALUES: [&[u8]; 11] = [
    b"7",
    b"8",
    b"",
    b"\xff",
    b"text/plain",
    b"application/grpc",
    b"application/json;q=0",
    b"wait=1",
    b"*/*",
    b"a,b",
    b"application/problem+json",
];

fn one<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.usize(..of.len())]
}

fn text(rng: &mut Rng, most: usize) -> String {
    (0..rng.usize(..=most)).map(|_| one(rng, &PIECES)).collect()
}

/// Returns the head of a random request, or `None` if the URI is one that a server rejects.
fn head(rng: &mut Rng) -> Option<Head> {
    let mut uri = one(rng, &PREFIXES).to_owned() + &text(rng, 4);
    if rng.bool() {
        let pairs = (0..rng.usize(..3)).map(|_| format!("{}={}", one(rng, &NAMES), text(rng, 2)));
        let pairs: Vec<_> = pairs.collect();
        uri += "?";
        uri += &pairs.join("&");
    }
    let methods = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::OPTIONS,
    ];
    let mut headers = HeaderMap::new();
    for _ in 0..rng.usize(..4) {
        let name = HeaderName::from_static(one(rng, &HEADERS));
        let value = HeaderValue::from_bytes(one(rng, &VALUES)).unwrap();
        headers.append(name, value);
    }
    Some(Head {
        method: methods[rng.usize(..methods.len())].clone(),
        uri: uri.parse().ok()?,
        headers,
        body: text(rng, 3),
    })
}

#[tokio::test]
async fn random_request_runs_only_under_its_lock() {
    let apps = Apps::new();
    let mut ran = [0; ALL.len()];
    for seed in SEEDS {
        let mut rng = Rng::with_seed(seed);
        for _ in 0..REQUESTS_PER_SEED {
            let at = rng.usize(..ALL.len());
            if let Some(head) = head(&mut rng)
                && apps.check(at, &head).await
            {
                ran[at] += 1;
            }
        }
    }
    for (by, ran) in ALL.iter().zip(ran) {
        assert!(ran > 100, "{by:?}: only {ran} requests ran");
    }
}
