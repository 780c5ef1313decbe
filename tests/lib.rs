//! Documentation tests of the pages whose programs need more than the crate and its examples.

#[cfg(doctest)]
#[path = "../src/guide/fencing.rs"]
mod fencing;
