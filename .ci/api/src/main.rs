//! Prints the public API that a JSON file of rustdoc describes, one item per line.

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
    print!("{api}");
    Ok(())
}
