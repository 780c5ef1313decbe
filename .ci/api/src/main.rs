//! Prints the public API that a JSON file of rustdoc describes, one item per line.

use std::collections::HashSet;
use std::env;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let file = env::args_os().nth(1).ok_or("usage: api FILE")?;
    // Derived and automatic impls would triple the list. `tests/layering/auto_traits.rs` asserts those that matter.
    let api = public_api::Builder::from_rustdoc_json(file)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    // A lint demands `Debug` of each type, and it has one method, as `Display` has.
    let is_debug = |item: &str| {
        item.starts_with("impl core::fmt::Debug for ")
            || item.ends_with("::fmt(&self, &mut core::fmt::Formatter<'_>) -> core::fmt::Result")
    };
    // An impl is listed at its trait and at its type, and a name at each of its paths.
    let mut listed = HashSet::new();
    let text = api.to_string();
    for item in text.lines().filter(|item| !is_debug(item) && listed.insert(item.to_string())) {
        println!("{item}");
    }
    Ok(())
}
