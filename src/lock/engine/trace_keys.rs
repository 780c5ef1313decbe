//! The keys in traces, which are absent unless the program sets how they are written.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::LockKey;

/// How [`LockManagerBuilder::trace_keys`](crate::LockManagerBuilder::trace_keys) writes keys into traces.
#[derive(Clone)]
pub struct TraceKeys(Kind);

#[derive(Clone)]
enum Kind {
    /// The MAC without a message.
    Hashed(Arc<Hmac<Sha256>>),
    With(fn(&LockKey) -> Cow<'_, str>),
}

/// The bytes of a hash that are written, as 16 hexadecimal digits.
const WRITTEN: usize = 8;

impl TraceKeys {
    /// Writes 16 hexadecimal digits of the HMAC-SHA-256 of each key.
    ///
    /// Equal keys have equal digits in all processes with this secret. Without the secret, the keys cannot be
    /// found by trying out account numbers. Use at least 16 random bytes.
    #[must_use]
    pub fn hashed(secret: impl AsRef<[u8]>) -> Self {
        let Ok(mac) = Hmac::new_from_slice(secret.as_ref()) else {
            unreachable!("BUG: HMAC takes a secret of any length");
        };
        Self(Kind::Hashed(Arc::new(mac)))
    }

    /// Writes what the function returns for each key.
    ///
    /// The function is called only if a subscriber records the span.
    #[must_use]
    pub fn with(write: fn(&LockKey) -> Cow<'_, str>) -> Self {
        Self(Kind::With(write))
    }

    /// Returns the keys as they are written.
    pub(crate) fn write(&self, keys: &[LockKey]) -> String {
        let written: Vec<_> = keys.iter().map(|key| self.one(key)).collect();
        written.join(",")
    }

    fn one<'a>(&self, key: &'a LockKey) -> Cow<'a, str> {
        match &self.0 {
            Kind::With(write) => write(key),
            Kind::Hashed(mac) => {
                let mac = Hmac::clone(mac).chain_update(key.as_str());
                let hash = mac.finalize().into_bytes();
                let written = hash[..WRITTEN].iter().map(|byte| format!("{byte:02x}"));
                written.collect::<String>().into()
            }
        }
    }
}

impl fmt::Debug for TraceKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Hashed(_) => "TraceKeys::hashed",
            Kind::With(_) => "TraceKeys::with",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test cases 2 and 6 of RFC 4231.
    #[test]
    fn hash_matches_rfc_4231() {
        let long = [0xaa; 131];
        for (secret, text, digits) in [
            (
                &b"Jefe"[..],
                "what do ya want for nothing?",
                "5bdcc146bf60754e",
            ),
            (
                &long,
                "Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f",
            ),
            // As long as a block, which is no case of the RFC.
            (
                &long[..64],
                "Test Using Larger Than Block-Size Key - Hash Key First",
                "84332a7580ed3cf7",
            ),
        ] {
            let keys = TraceKeys::hashed(secret);
            assert_eq!(keys.write(&[LockKey::new(text)]), digits);
        }
    }

    #[test]
    fn debug_output_has_no_secret() {
        let keys = TraceKeys::hashed("canary-secret");
        assert_eq!(format!("{keys:?}"), "TraceKeys::hashed");
    }

    #[test]
    fn function_writes_each_key() {
        let keys = TraceKeys::with(|key| key.as_str().to_uppercase().into());
        assert_eq!(keys.write(&["a".into(), "b".into()]), "A,B");
    }
}
