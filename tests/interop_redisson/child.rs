//! Another process of this crate: this program, started again to hold a lock until it is killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Child as Process, Command, Stdio};

use tower_lock::RedisBackend;

use crate::sides::manager;

/// The environment variable with the URL and the name.
const ORDER: &str = "LOCK_FOR_ANOTHER_PROCESS";

/// Runs the child process, if this is one.
pub(crate) fn main() -> bool {
    let Ok(order) = std::env::var(ORDER) else {
        return false;
    };
    let (url, name) = order.split_once(' ').expect("a URL and a name");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let locks = manager(RedisBackend::builder(url)).await;
        let guard = locks.acquire(name).await.expect("it is free");
        println!("held");
        guard.lost().await;
    });
    true
}

/// A process that holds a lock, and is killed when dropped.
pub(crate) struct Child(Process);

impl Child {
    pub(crate) fn start(url: &str, name: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut process = Command::new(program)
            .env(ORDER, format!("{url} {name}"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let output = process.stdout.take().expect("its output");
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "held"), "it has the lock");
        Self(process)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
