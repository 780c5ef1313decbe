/// Reports a forced release by an operator, to the target `tower_lock::audit`.
pub(crate) fn force_released(operator: Option<&str>, reason: &str, outcome: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        target: "tower_lock::audit",
        operator,
        reason,
        outcome,
        "force release"
    );
}
