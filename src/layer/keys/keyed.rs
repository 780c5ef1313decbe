//! The extraction of keys for a layer, with its failures counted and logged.

use std::any::type_name;

#[cfg(feature = "axum")]
use axum::extract::MatchedPath;
use http::Extensions;
use http::request::Parts;

use super::extractor::KeyExtractor;
#[cfg(feature = "axum")]
use super::shared_kind::SharedKind;
use crate::observe::Mistake;
use crate::{Error, ErrorKind, InvalidKey, LockKeys, LockManager};

/// The extractor of a layer, and where the layer has logged that the program is wrong.
pub(in crate::layer) struct Keyed<K> {
    extractor: K,
    mistake: Mistake,
    #[cfg(feature = "axum")]
    shared_kind: Option<SharedKind>,
}

impl<K> Keyed<K> {
    pub(in crate::layer) fn new(extractor: K) -> Self {
        Self {
            extractor,
            mistake: Mistake::of(type_name::<K>()),
            #[cfg(feature = "axum")]
            shared_kind: None,
        }
    }

    pub(in crate::layer) fn extractor(&self) -> &K {
        &self.extractor
    }
}

impl<K: KeyExtractor> Keyed<K> {
    pub(in crate::layer) fn of(extractor: K) -> Self {
        Self {
            #[cfg(feature = "axum")]
            shared_kind: SharedKind::of(&extractor.parameters()),
            ..Self::new(extractor)
        }
    }

    /// Reports if the layers of a manager use one kind of key for several resources.
    pub(in crate::layer) fn check_kind(&self, locks: &LockManager, of_request: &Extensions) {
        #[cfg(feature = "axum")]
        if let (Some(kind), Some(route)) = (&self.shared_kind, route(of_request)) {
            kind.check(locks.id(), route);
        }
        #[cfg(not(feature = "axum"))]
        let _unused_without_axum = (locks, of_request);
    }

    pub(in crate::layer) fn extract(&self, request: &mut Parts) -> Result<Option<LockKeys>, Error> {
        let extracted = self.extractor.extract_in_place(request);
        extracted.map_err(|invalid| self.failed(invalid, &request.extensions))
    }

    #[cold]
    fn failed(&self, invalid: InvalidKey, of_request: &Extensions) -> Error {
        let kind = match invalid {
            InvalidKey::Setup(_) => ErrorKind::Misconfigured,
            InvalidKey::NoRoute => ErrorKind::NoRoute,
            _ => ErrorKind::InvalidKey,
        };
        if kind == ErrorKind::Misconfigured {
            self.mistake.report(route(of_request), &invalid);
        }
        Error::new(kind).with_source(invalid)
    }
}

/// Returns the route of axum to which the request goes.
fn route(extensions: &Extensions) -> Option<&str> {
    #[cfg(feature = "axum")]
    return extensions.get().map(MatchedPath::as_str);
    #[cfg(not(feature = "axum"))]
    {
        let _unused_without_axum = extensions;
        None
    }
}
