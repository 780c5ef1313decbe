//! Redisson: the Java program `interop/redisson`, which executes one command per line.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::support::process::Process;

/// The timeout for steps without a deadline of their own.
const PATIENCE: Duration = Duration::from_secs(60);

/// The tested versions, oldest first.
pub(crate) const VERSIONS: [&str; 2] = ["3.16.8", "4.7.0"];

/// The version of the logging API that each of them requires.
const LOGGERS: [&str; 2] = ["1.7.36", "2.0.17"];

/// The outcome of a command, and the time of its arrival. An error is `exception message`.
pub(crate) type Outcome = (Result<String, String>, Instant);

/// One JVM with one `RedissonClient`, which ends when dropped.
pub(crate) struct Java {
    process: Process,
    input: ChildStdin,
    commands: u64,
    waiting: Arc<Mutex<HashMap<u64, oneshot::Sender<Outcome>>>>,
}

/// A command in flight.
pub(crate) struct Call {
    what: String,
    outcome: oneshot::Receiver<Outcome>,
}

/// The servers that Redisson connects to.
pub(crate) struct Place {
    pub(crate) kind: &'static str,
    /// The service name at the sentinels.
    pub(crate) service: &'static str,
    /// The addresses as `host:port`.
    pub(crate) addresses: Vec<String>,
}

/// Builds the program with each version of Redisson.
pub(crate) fn build() -> Result<(), String> {
    for (version, logger) in VERSIONS.into_iter().zip(LOGGERS) {
        let output = Command::new("mvn")
            .args(["--quiet", "--batch-mode", "package"])
            .arg(format!("-Dredisson.version={version}"))
            .arg(format!("-Dslf4j.version={logger}"))
            .current_dir(folder())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| {
                format!("`mvn` cannot be run ({error}): install a JDK 17 and Maven")
            })?;
        if !output.status.success() {
            let [said, cried] = [output.stdout, output.stderr];
            let said = [
                String::from_utf8_lossy(&said),
                String::from_utf8_lossy(&cried),
            ]
            .concat();
            return Err(format!("`mvn package` with Redisson {version}:\n{said}"));
        }
    }
    Ok(())
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../interop/redisson"))
}

fn classes(version: &str) -> OsString {
    let target = folder().join("target").join(version);
    let classes = [target.join("redisson.jar"), target.join("lib/*")];
    std::env::join_paths(classes).expect("no path with a colon")
}

impl Java {
    /// Starts the program, and waits until it is connected.
    pub(crate) async fn start(version: &str, place: &Place, watchdog: Duration) -> Self {
        let addresses = place.addresses.iter().map(|it| format!("redis://{it}"));
        let mut process = Command::new("java")
            .arg("-cp")
            .arg(classes(version))
            .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error"])
            // Two cores run several of these.
            .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx192m"])
            .args(["interop.Program", place.kind])
            .args([watchdog.as_millis().to_string(), place.service.to_owned()])
            .args(addresses)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`java` runs");
        let input = process.stdin.take().expect("its input");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let waiting = Arc::<Mutex<HashMap<u64, oneshot::Sender<Outcome>>>>::default();
        let (ready, is_ready) = oneshot::channel();
        let answers = Arc::clone(&waiting);
        std::thread::spawn(move || {
            let mut lines = output.lines().map_while(Result::ok);
            if lines.next().is_none_or(|line| line != "ready") || ready.send(()).is_err() {
                return;
            }
            for line in lines {
                let heard = Instant::now();
                let (number, outcome) = parse(&line);
                let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(answer) = answers.remove(&number) {
                    drop(answer.send((outcome, heard)));
                }
            }
        });
        // From here on, the process is killed if a step fails.
        let java = Self {
            process: Process::of(process),
            input,
            commands: 0,
            waiting,
        };
        timeout(PATIENCE, is_ready)
            .await
            .expect("Redisson connects in time")
            .expect("Redisson connects");
        java
    }

    /// Sends a command to a thread. Redisson identifies an owner by its thread. Only names may contain any
    /// characters.
    pub(crate) fn send(
        &mut self,
        thread: &str,
        command: &str,
        name: &str,
        more: &[&(dyn Display + Sync)],
    ) -> Call {
        self.commands += 1;
        let (sender, outcome) = oneshot::channel();
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(self.commands, sender);
        let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
        let mut what = format!("{thread} {command} {name}");
        for argument in more {
            what += &format!(" {argument}");
        }
        writeln!(self.input, "{} {what}", self.commands).expect("the program listens");
        Call { what, outcome }
    }

    /// Returns the value of a command that must succeed.
    pub(crate) async fn call(
        &mut self,
        thread: &str,
        command: &str,
        name: &str,
        more: &[&(dyn Display + Sync)],
    ) -> String {
        self.send(thread, command, name, more).value().await
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }
}

impl Call {
    pub(crate) async fn outcome(self) -> Outcome {
        let answer = timeout(PATIENCE, self.outcome).await;
        let answer = answer.unwrap_or_else(|_| panic!("{}: no reply", self.what));
        answer.unwrap_or_else(|_| panic!("{}: the JVM is gone", self.what))
    }

    /// Returns the value of the command and the time of its arrival.
    pub(crate) async fn timed(self) -> (String, Instant) {
        let what = self.what.clone();
        let (outcome, heard) = self.outcome().await;
        let value = outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
        (value, heard)
    }

    pub(crate) async fn value(self) -> String {
        self.timed().await.0
    }

    /// Returns the name of the exception that the command must throw.
    pub(crate) async fn exception(self) -> String {
        let what = self.what.clone();
        match self.outcome().await.0 {
            Ok(value) => panic!("{what}: {value:?} and no exception"),
            Err(error) => error.split(' ').next().unwrap_or_default().to_owned(),
        }
    }
}

fn parse(line: &str) -> (u64, Result<String, String>) {
    let mut words = line.splitn(3, ' ');
    let number = words.next().and_then(|number| number.parse().ok());
    let number = number.unwrap_or_else(|| panic!("Redisson said: {line}"));
    let (kind, rest) = (words.next(), words.next().unwrap_or_default().to_owned());
    match kind {
        Some("ok") => (number, Ok(rest)),
        _ => (number, Err(rest)),
    }
}
