use std::fmt::Display;

/// Reports that no request through a layer can have a key. The problem includes its remedy.
pub(crate) fn misconfigured(extractor: &'static str, problem: &impl Display) {
    #[cfg(feature = "tracing")]
    tracing::error!(extractor, %problem, "lock layer misconfigured");
    #[cfg(not(feature = "tracing"))]
    let _unused_without_features = (extractor, problem);
}
