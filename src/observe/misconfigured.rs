use std::fmt::Display;

/// Reports that no request through a layer can have a key. The problem includes its remedy.
pub(crate) fn misconfigured(extractor: &'static str, problem: &impl Display) {
    #[cfg(feature = "tracing")]
    tracing::error!(extractor, %problem, "lock layer misconfigured");
    #[cfg(not(feature = "tracing"))]
    let _unused_without_features = (extractor, problem);
}

/// Reports the first request for a lock that the program has dropped without an await.
pub(crate) fn not_awaited() {
    #[cfg(feature = "tracing")]
    {
        use std::sync::atomic::{AtomicBool, Ordering};

        static IS_LOGGED: AtomicBool = AtomicBool::new(false);
        if !IS_LOGGED.swap(true, Ordering::Relaxed) {
            tracing::warn!("lock request dropped without an await");
        }
    }
}
