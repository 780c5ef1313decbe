//! A library that replaces a clock of another process, with a number that the test can change.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// A built library and the file of its number. Linux only.
pub(crate) struct Preloaded {
    dir: TempDir,
    number: File,
}

impl Preloaded {
    /// Builds `tests/support/preloaded/{name}.c`.
    pub(crate) fn build(name: &str, number: i64) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the library");
        // The server may run as another user.
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(dir.path(), readable).expect("its own directory");
        let file = File::create(dir.path().join("number")).expect("a file");
        let built = Self { dir, number: file };
        built.set(number);
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/support/preloaded/");
        let source = PathBuf::from(format!("{folder}{name}.c"));
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"])
            .args([built.library(), source.clone()])
            .status();
        let status = status.unwrap_or_else(|error| {
            panic!("this test needs a C compiler: `cc` cannot be run ({error})")
        });
        assert!(status.success(), "`cc` rejects {}", source.display());
        built
    }

    /// Makes the process that `command` starts use the library.
    pub(crate) fn preload(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", self.library())
            .env("PRELOADED_NUMBER", self.dir.path().join("number"));
    }

    pub(crate) fn set(&self, number: i64) {
        // The file keeps its length: the process has mapped it.
        let mut file = &self.number;
        let written = file
            .rewind()
            .and_then(|()| file.write_all(&number.to_ne_bytes()));
        written.expect("the file can be written");
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("clock.so")
    }
}
