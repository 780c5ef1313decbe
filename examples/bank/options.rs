//! The options of the command line.

use lexopt::prelude::*;

pub(crate) const HELP: &str = "\
Transfers with and without locks, over HTTP.

Usage: cargo run --example bank -- [options]

  --port N      listen on 127.0.0.1:N (default 3000; 0 takes any free port)
  --locks URL   keep the locks there (default memory://), for instance
                redis://127.0.0.1:6379, or postgres://… with the
                feature `postgres`
  --once        end after the table; fail if a locked route lost an update
                or read a torn statement
  --help        show this
";

pub(crate) struct Options {
    pub(crate) port: u16,
    pub(crate) locks: String,
    pub(crate) once: bool,
}

impl Options {
    /// Returns `None` if help was requested.
    pub(crate) fn from_args() -> Result<Option<Self>, lexopt::Error> {
        let mut options = Self {
            port: 3000,
            locks: "memory://".to_owned(),
            once: false,
        };
        let mut args = lexopt::Parser::from_env();
        while let Some(arg) = args.next()? {
            match arg {
                Long("port") => options.port = args.value()?.parse()?,
                Long("locks") => options.locks = args.value()?.string()?,
                Long("once") => options.once = true,
                Long("help") | Short('h') => return Ok(None),
                other => return Err(other.unexpected()),
            }
        }
        Ok(Some(options))
    }
}
