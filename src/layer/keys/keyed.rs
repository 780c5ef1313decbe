//! The extraction of keys for a layer, with its failures counted and logged.

use std::any::type_name;
use std::sync::atomic::{AtomicBool, Ordering};

use http::request::Parts;

use super::extractor::KeyExtractor;
use crate::{Error, ErrorKind, InvalidKey, LockKeys, observe};

/// The extractor of a layer, and whether the layer has logged that the program is wrong.
pub(in crate::layer) struct Keyed<K> {
    extractor: K,
    /// Each request to a wrong route fails. One event is enough.
    is_logged: AtomicBool,
}

impl<K> Keyed<K> {
    pub(in crate::layer) fn new(extractor: K) -> Self {
        Self {
            extractor,
            is_logged: AtomicBool::new(false),
        }
    }

    pub(in crate::layer) fn extractor(&self) -> &K {
        &self.extractor
    }
}

impl<K: KeyExtractor> Keyed<K> {
    pub(in crate::layer) fn extract(&self, request: &mut Parts) -> Result<Option<LockKeys>, Error> {
        let extracted = self.extractor.extract_in_place(request);
        extracted.map_err(|invalid| self.failed(invalid))
    }

    #[cold]
    fn failed(&self, invalid: InvalidKey) -> Error {
        let kind = match invalid {
            InvalidKey::Setup { .. } => ErrorKind::InvalidSetup,
            InvalidKey::NoRoute => ErrorKind::NoRoute,
            _ => ErrorKind::InvalidKey,
        };
        if kind == ErrorKind::InvalidSetup && !self.is_logged.swap(true, Ordering::Relaxed) {
            observe::misconfigured(type_name::<K>(), &invalid);
        }
        Error::new(kind).with_source(invalid)
    }
}
