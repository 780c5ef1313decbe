//! A child process that replies in lines and ends with its owner.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Returns a command that starts this program again.
pub(crate) fn this_program(arguments: &[&str]) -> Command {
    let this = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(this);
    command.args(arguments);
    command
}

pub(crate) struct Speaker {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Speaker {
    pub(crate) fn start(mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command
            .spawn()
            .map_err(|error| format!("cannot be run: {error}"))?;
        Ok(Self {
            input: process.stdin.take().expect("it is piped"),
            output: BufReader::new(process.stdout.take().expect("it is piped")),
            process,
        })
    }

    pub(crate) fn process(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn say(&mut self, line: &str) -> std::io::Result<()> {
        writeln!(self.input, "{line}")
    }

    /// Reads the next line, which starts with this word. Returns it without the word.
    pub(crate) fn expect(&mut self, word: &str) -> Result<String, String> {
        let mut line = String::new();
        let length = self.output.read_line(&mut line);
        let line = line.trim_end();
        match line.split_once(' ').unwrap_or((line, "")) {
            (first, rest) if first == word => Ok(rest.to_owned()),
            ("failed", reason) => Err(reason.to_owned()),
            _ if matches!(length, Ok(0)) => Err("the process has ended".to_owned()),
            _ => Err(format!("says `{line}`")),
        }
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        // A process that has ended needs no kill.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
