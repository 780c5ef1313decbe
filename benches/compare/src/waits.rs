//! The distribution of waits.

use std::error::Error;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2Serializer};

/// Waits in nanoseconds, exact to three digits. The text form is that of Java's HdrHistogram.
#[derive(Clone)]
pub(crate) struct Waits(Histogram<u64>);

impl Default for Waits {
    fn default() -> Self {
        Self(Histogram::new(3).expect("three digits are allowed"))
    }
}

impl Waits {
    pub(crate) fn record(&mut self, wait: Duration) {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.0.record(nanos).expect("the histogram grows");
    }

    pub(crate) fn add(&mut self, others: &Self) {
        self.0.add(&others.0).expect("the histogram grows");
    }

    /// Returns the wait in seconds that this share of the waits did not exceed.
    pub(crate) fn at(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e9
    }

    pub(crate) fn longest(&self) -> f64 {
        self.0.max() as f64 / 1e9
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn to_text(&self) -> String {
        let mut bytes = Vec::new();
        V2Serializer::new()
            .serialize(&self.0, &mut bytes)
            .expect("a vector takes it");
        BASE64_STANDARD.encode(bytes)
    }

    pub(crate) fn from_text(text: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let bytes = BASE64_STANDARD.decode(text)?;
        let histogram = Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|error| format!("no histogram: {error:?}"))?;
        Ok(Self(histogram))
    }
}
