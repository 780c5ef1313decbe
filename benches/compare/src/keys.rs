//! The choice of the next key.

use crate::job::{Job, Keys};

pub(crate) struct KeySource {
    name: String,
    /// The sum of the weights up to each shared key. If empty, each key is new.
    sums: Vec<f64>,
}

impl KeySource {
    pub(crate) fn of(job: &Job) -> Self {
        let count = match job.keys {
            Keys::New => 0,
            Keys::Shared(count) => count,
        };
        let mut sum = 0.0;
        let weights = (1..=count).map(|rank| 1.0 / rank as f64);
        Self {
            name: job.name.clone(),
            sums: weights
                .map(|weight| {
                    sum += weight;
                    sum
                })
                .collect(),
        }
    }

    /// Returns the key for the n-th pair of a task.
    pub(crate) fn key(&self, task: usize, n: usize) -> String {
        let name = &self.name;
        match self.sums.last() {
            None => format!("{name}:{task}:{n}"),
            Some(whole) => {
                let point = fastrand::f64() * whole;
                let rank = self.sums.partition_point(|sum| *sum <= point);
                format!("{name}:{rank}")
            }
        }
    }
}
