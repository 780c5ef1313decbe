//! What the compiler says about a program that is wrong.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Behind each mistake stand the start of its message, and a remedy of its note.
const PROGRAM: &str = r#"
use tower_lock::{LockKey, LockLayer, LockManager, Locked, LockedShared};
#[derive(Clone)] struct Ship;
struct ByOrder;
fn target(_: Locked<Ship>) {} //~ `Ship` supplies no keys to lock //~ write `impl LockTarget for ...` for your own type
fn shared(_: LockedShared<Ship>) {} //~ `Ship` supplies no keys to lock //~ `LockKey::from_parts(["account", &self.id]).into()`
fn by(_: Locked<Ship, ByOrder>) {} //~ `ByOrder` supplies no lock keys for `Ship` //~ write `impl LockBy<...> for ByOrder`
fn extension(locks: LockManager) { LockLayer::by_extension::<Ship>(locks); } //~ `Ship` supplies no keys to lock //~ pass it on from the type inside
fn extractor(locks: LockManager) { LockLayer::new(locks, Ship); } //~ `Ship` returns no lock keys for a request //~ pass a closure to `LockLayer::by_fn`
fn closure(locks: LockManager) { LockLayer::by_fn(locks, |_| Ship); } //~ a closure for `by_fn` cannot return `Ship` //~ must be `tower_lock::keys::InvalidKey`
fn part() { LockKey::from_parts([Ship]); } //~ `Ship` is no part of a lock key //~ write the value as text: `value.to_string()`
fn parts() { LockKey::from_parts("order"); } //~ `str` are no parts of a lock key //~ of several types, a tuple: `("order", 42)`
"#;

/// Returns the builds of the crate beside this program, the last one first. Cargo names none of them to a test.
fn builds(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let files = files.filter(|file| {
        let name = file.file_name().into_string().unwrap();
        name.starts_with("libtower_lock-") && name.ends_with(".rlib")
    });
    let mut builds: Vec<_> = files
        .map(|file| (file.metadata().unwrap().modified().unwrap(), file.path()))
        .collect();
    builds.sort();
    builds.into_iter().rev().map(|(_, path)| path).collect()
}

fn errors_of(program: &Path, build: &Path, dependencies: &Path) -> String {
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler)
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata"])
        .arg("-L")
        .arg(dependencies)
        .arg(format!("--extern=tower_lock={}", build.display()))
        .arg("--out-dir")
        .arg(program.parent().unwrap())
        .arg(program)
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn mistakes_that_do_not_compile_have_remedy() {
    let dependencies = env::current_exe().unwrap();
    let dependencies = dependencies.parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("mistakes.rs");
    fs::write(&program, PROGRAM).unwrap();
    // A build without the feature `axum` has no `Locked`.
    let mut errors = builds(dependencies)
        .into_iter()
        .map(|build| errors_of(&program, &build, dependencies));
    let errors = errors
        .find(|errors| !errors.contains("unresolved import"))
        .unwrap();
    for (index, line) in PROGRAM.lines().enumerate() {
        let mut texts = line.split(" //~ ").skip(1);
        let (Some(message), Some(remedy)) = (texts.next(), texts.next()) else {
            continue;
        };
        let place = format!("mistakes.rs:{}:", index + 1);
        let mut all = errors.split("\n\n");
        let error = all.find(|error| error.contains(&place));
        let error = error.unwrap_or_else(|| panic!("{place} {errors}"));
        // The program stands in it as well.
        assert!(
            error.starts_with(&format!("error[E0277]: {message}")),
            "{error}"
        );
        let note = error.lines().find(|line| line.contains("= note: "));
        assert!(note.is_some_and(|note| note.contains(remedy)), "{error}");
    }
}
