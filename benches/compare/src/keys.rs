//! The choice of the next key.

use crate::job::{Job, Keys};

pub(crate) struct KeySource {
    name: String,
    /// Each task has one key.
    is_own: bool,
    /// The sum of the weights up to each shared key. If empty, each key is new.
    sums: Vec<f64>,
}

impl KeySource {
    pub(crate) fn of(job: &Job) -> Self {
        let count = match job.keys {
            Keys::New | Keys::Own => 0,
            Keys::Shared(count) => count,
        };
        let mut sum = 0.0;
        let weights = (1..=count).map(|rank| 1.0 / rank as f64);
        Self {
            name: job.name.clone(),
            is_own: job.keys == Keys::Own,
            sums: weights
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect(),
        }
    }

    /// Returns `true` if each pair of a task has the same key.
    pub(crate) fn come_back(&self) -> bool {
        self.is_own
    }

    /// Returns the key for the n-th pair of a task.
    pub(crate) fn key(&self, task: usize, n: usize) -> String {
        let name = &self.name;
        match self.sums.last() {
            None if self.is_own => format!("{name}:{task}"),
            None => format!("{name}:{task}:{n}"),
            Some(whole) => {
                let point = fastrand::f64() * whole;
                let rank = self.sums.partition_point(|sum| *sum <= point);
                format!("{name}:{rank}")
            }
        }
    }
}
