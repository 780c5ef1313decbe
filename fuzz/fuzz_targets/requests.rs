//! Requests from the fuzzer against each layer: `cargo +nightly fuzz run requests`.
//!
//! The first byte of the input selects the layer and the method. The first line is the URI, each further line is a
//! header.
#![no_main]

#[path = "../../tests/http/random/check.rs"]
mod check;

use std::cell::OnceCell;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::{Builder, Runtime};

use self::check::{ALL, Head, Apps};

const METHODS: [Method; 5] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::OPTIONS,
];

thread_local! {
    static APPS: OnceCell<(Runtime, Apps)> = const { OnceCell::new() };
}

fn head(first: u8, input: &[u8]) -> Option<Head> {
    let mut lines = input.split(|&byte| byte == b'\n');
    let uri = lines.next()?.try_into().ok()?;
    let mut headers = HeaderMap::new();
    for line in lines {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        headers.append(name, HeaderValue::from_bytes(&line[colon + 1..]).ok()?);
    }
    Some(Head {
        method: METHODS[usize::from(first) / ALL.len() % METHODS.len()].clone(),
        uri,
        headers,
        body: String::new(),
    })
}

fuzz_target!(|input: &[u8]| {
    let Some((&first, input)) = input.split_first() else {
        return;
    };
    let Some(head) = head(first, input) else {
        return;
    };
    APPS.with(|apps| {
        let (runtime, apps) = apps.get_or_init(|| {
            let runtime = Builder::new_current_thread().enable_all().build();
            (runtime.expect("a runtime"), Apps::new())
        });
        runtime.block_on(apps.check(usize::from(first) % ALL.len(), &head));
    });
});
