//! The committed figures, and the compiler that produced them.

use std::fmt::Write as _;
use std::process::Command;

const FILE: &str = if cfg!(feature = "metrics") {
    concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/benches/instructions/stored-metrics.txt"
    )
} else {
    concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/benches/instructions/stored.txt"
    )
};

pub(crate) struct Stored {
    pub(crate) compiler: String,
    text: String,
}

impl Stored {
    pub(crate) fn read() -> Self {
        let text = std::fs::read_to_string(FILE).unwrap_or_default();
        let compiler = text.lines().next().unwrap_or("nothing").to_owned();
        Self { compiler, text }
    }

    pub(crate) fn figure(&self, path: &str) -> Option<u64> {
        let mut lines = self.text.lines().skip(1);
        lines.find_map(|line| {
            let (figure, name) = line.split_once(' ')?;
            (name == path).then(|| figure.parse().ok())?
        })
    }
}

pub(crate) fn store(figures: &[(&str, u64)]) {
    let mut text = compiler() + "\n";
    for (name, figure) in figures {
        writeln!(text, "{figure} {name}").expect("a string takes it");
    }
    std::fs::write(FILE, &text).expect("the file can be written");
    print!("{text}");
}

pub(crate) fn compiler() -> String {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(rustc).arg("--version").output();
    output.map_or_else(
        |_| "an unknown compiler".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
