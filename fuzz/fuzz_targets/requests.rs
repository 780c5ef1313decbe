//! Requests from the fuzzer against each layer: `make fuzz`.
#![no_main]

#[path = "../../tests/http/random/check.rs"]
mod check;
#[path = "../../tests/http/random/input.rs"]
mod input;
#[path = "../../tests/http/random/routes.rs"]
mod routes;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    input::check(bytes);
});
