//! Processes of the example `jobs` over one Redis and one file.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::support::engine::{PATIENCE, SECOND, nothing_is_left, subscribers, within};
use crate::support::example::program;
use crate::support::redis_server::RedisServer;

/// One line of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    number: usize,
    process: u32,
    token: i64,
}

fn runs(file: &Path) -> Vec<Run> {
    let lines = std::fs::read_to_string(file).unwrap_or_default();
    // The last line may be incomplete.
    let lines = lines.split_inclusive('\n').filter(|it| it.ends_with('\n'));
    let run = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            [
                "run",
                number,
                "in",
                "process",
                process,
                "with",
                "token",
                token,
            ] => Run {
                number: number.parse().unwrap(),
                process: process.parse().unwrap(),
                token: token.parse().unwrap(),
            },
            _ => panic!("not a run: {line}"),
        }
    };
    lines.map(run).collect()
}

/// Returns the process that runs, once the file has five runs beyond `past` of processes other than `ended`.
async fn working(file: &Path, past: usize, ended: Option<u32>) -> u32 {
    let next = || {
        let runs = runs(file).into_iter().skip(past).map(|run| run.process);
        runs.filter(|process| Some(*process) != ended).nth(4)
    };
    within(PATIENCE, "runs", || next().is_some()).await;
    next().unwrap()
}

/// Two concurrent runs would have one number. A stale holder would have a smaller token than the run before.
fn assert_one_at_a_time(runs: &[Run]) {
    for (run, number) in runs.iter().zip(1..) {
        assert_eq!(run.number, number, "concurrent runs: {runs:#?}");
    }
    for pair in runs.windows(2) {
        let is_in_order = match pair[0].process == pair[1].process {
            true => pair[0].token <= pair[1].token,
            false => pair[0].token < pair[1].token,
        };
        assert!(is_in_order, "not a later holder: {runs:#?}");
    }
}

struct Jobs {
    redis: RedisServer,
    folder: tempfile::TempDir,
    lease: Duration,
}

impl Jobs {
    fn new(lease: Duration) -> Self {
        Self {
            redis: RedisServer::start(),
            folder: tempfile::tempdir().unwrap(),
            lease,
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("jobs.txt")
    }

    fn start(&self) -> Child {
        Command::new(program("jobs"))
            .args(["--every", "0.03", "--locks", &self.redis.url()])
            .args(["--lease", &self.lease.as_secs().to_string()])
            .arg("--file")
            .arg(self.file())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }
}

/// Ends the process with SIGTERM.
async fn terminate(process: &mut Child) {
    let id = process.id().unwrap().to_string();
    let killed = std::process::Command::new("kill").arg(&id).status();
    assert!(killed.unwrap().success());
    let ended = timeout(PATIENCE, process.wait()).await;
    assert!(ended.expect("it ends in time").unwrap().success());
}

/// Splits two processes into the one with this id and the other.
fn split(id: u32, [a, b]: [Child; 2]) -> (Child, Child) {
    if a.id() == Some(id) { (a, b) } else { (b, a) }
}

#[tokio::test]
async fn killed_job_continues_in_other_process() {
    let jobs = Jobs::new(2 * SECOND);
    let file = jobs.file();
    let both = [jobs.start(), jobs.start()];
    let first = working(&file, 0, None).await;
    let (mut holder, mut waiter) = split(first, both);
    holder.kill().await.unwrap();
    let past = runs(&file).len();
    let second = working(&file, past, Some(first)).await;
    assert_eq!(Some(second), waiter.id());
    assert_one_at_a_time(&runs(&file));
    terminate(&mut waiter).await;
    // The queue of a key lasts 6 s after the last attempt of a process.
    nothing_is_left(&jobs.redis, &[], 7 * SECOND, "the end").await;
}

#[tokio::test]
async fn terminated_job_continues_before_its_lease() {
    // Longer than the test waits.
    let jobs = Jobs::new(10 * PATIENCE);
    let file = jobs.file();
    let both = [jobs.start(), jobs.start()];
    let first = working(&file, 0, None).await;
    let (mut holder, mut waiter) = split(first, both);
    terminate(&mut holder).await;
    let second = working(&file, 0, Some(first)).await;
    assert_eq!(Some(second), waiter.id());
    // A third process waits, and ends although it never held the lock.
    let waiters = || subscribers(&jobs.redis, "job:count");
    within(PATIENCE, "no waiter", || waiters() == 0).await;
    let mut third = jobs.start();
    within(PATIENCE, "a waiter", || waiters() == 1).await;
    terminate(&mut third).await;
    terminate(&mut waiter).await;
    let runs = runs(&file);
    assert!(
        runs.iter()
            .all(|run| [first, second].contains(&run.process))
    );
    assert_one_at_a_time(&runs);
    nothing_is_left(&jobs.redis, &[], 7 * SECOND, "the end").await;
}
