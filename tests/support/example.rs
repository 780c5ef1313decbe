//! The programs of the examples.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Returns the path of an example, which `make test` builds before the tests.
pub(crate) fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let profile = test.parent().and_then(Path::parent).expect("a profile");
    // Some are packages.
    let package = profile.join(format!("example-{name}"));
    let example = profile.join("examples").join(name);
    let program = if package.exists() { package } else { example };
    let build = "`make examples` first, with the profile of the tests";
    let modified = |path: &Path| -> Option<SystemTime> { path.metadata().ok()?.modified().ok() };
    let built = modified(&program);
    assert!(
        built.is_some(),
        "there is no {}: {build}",
        program.display()
    );
    // The sources, as cargo lists them. An outdated program would test earlier code.
    let sources = std::fs::read_to_string(program.with_extension("d")).expect("a list of sources");
    for source in sources.split_whitespace().skip(1) {
        assert!(
            modified(Path::new(source)) <= built,
            "{} is older than {source}: {build}",
            program.display()
        );
    }
    program
}
