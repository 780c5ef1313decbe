//! What every example needs, and no lock.

use std::error::Error;
use std::io;
use std::iter::successors;

use tokio::signal::ctrl_c;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};

/// Completes at Ctrl-C, or at SIGTERM from a service manager.
pub(crate) async fn stop_requested() -> io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            interrupted = ctrl_c() => interrupted,
            _ = terminated.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    ctrl_c().await
}

/// Returns an error and its causes as one line. A repeated message is left out, because some errors are their own
/// cause.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut levels: Vec<String> = Vec::new();
    for level in successors(Some(error), |&error| error.source()) {
        let level = level.to_string();
        if !levels.contains(&level) {
            levels.push(level);
        }
    }
    levels.join(": ")
}
