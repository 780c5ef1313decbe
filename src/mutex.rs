//! A mutex without poisoning: a task that panics must not stop the others.

use std::sync::{MutexGuard, PoisonError};
use std::task::Waker;

/// A mutex for data, whose lock is never held across an await.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registers the waker of a task, and returns the one that it replaces, to be dropped after the mutex is free: it may own a
/// task of the program, and the locks of that task.
#[must_use]
pub(crate) fn replace_waker(slot: &mut Option<Waker>, waker: &Waker) -> Option<Waker> {
    match slot {
        Some(same) if same.will_wake(waker) => None,
        slot => slot.replace(waker.clone()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    /// Returns `false` if this does not end, as with a mutex that its own thread holds.
    pub(crate) fn ends(act: impl FnOnce() + Send + 'static) -> bool {
        let (ended, end) = mpsc::channel();
        thread::spawn(move || {
            act();
            ended.send(()).expect("the test waits");
        });
        end.recv_timeout(Duration::from_secs(10)).is_ok()
    }
}
