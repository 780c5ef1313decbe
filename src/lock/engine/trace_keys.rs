//! The keys in traces, which are absent unless the program sets how they are written.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::LockKey;

/// How [`LockManagerBuilder::trace_keys`](crate::LockManagerBuilder::trace_keys) writes keys into traces.
#[derive(Clone)]
pub struct TraceKeys(Kind);

#[derive(Clone)]
enum Kind {
    Hashed(Arc<Pads>),
    With(fn(&LockKey) -> Cow<'_, str>),
}

/// The two blocks of HMAC-SHA-256 (RFC 2104) that contain the secret.
struct Pads {
    inner: [u8; BLOCK],
    outer: [u8; BLOCK],
}

/// The block size of SHA-256.
const BLOCK: usize = 64;

/// The bytes of a hash that are written, as 16 hexadecimal digits.
const WRITTEN: usize = 8;

impl TraceKeys {
    /// Writes 16 hexadecimal digits of the HMAC-SHA-256 of each key.
    ///
    /// Equal keys have equal digits in all processes with this secret. Without the secret, the keys cannot be
    /// found by trying out account numbers. Use at least 16 random bytes.
    #[must_use]
    pub fn hashed(secret: impl AsRef<[u8]>) -> Self {
        let secret = secret.as_ref();
        let mut key = [0; BLOCK];
        if secret.len() > BLOCK {
            let hash = Sha256::digest(secret);
            key[..hash.len()].copy_from_slice(&hash);
        } else {
            key[..secret.len()].copy_from_slice(secret);
        }
        Self(Kind::Hashed(Arc::new(Pads {
            inner: key.map(|byte| byte ^ 0x36),
            outer: key.map(|byte| byte ^ 0x5c),
        })))
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
            Kind::Hashed(pads) => {
                let inner = Sha256::new().chain_update(pads.inner);
                let inner = inner.chain_update(key.as_str()).finalize();
                let outer = Sha256::new().chain_update(pads.outer);
                let hash = outer.chain_update(inner).finalize();
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
                &long[..BLOCK],
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
