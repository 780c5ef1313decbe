//! How the holders of one key exclude each other.

/// How a lease holds its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// No other lease holds the key.
    #[default]
    Exclusive,
    /// Other shared leases may hold the key as well, but no exclusive one.
    Shared,
    /// Other permits may hold the key as well, as many as the [limit](crate::manager::Acquire::permits) of the acquire allows,
    /// but no lease of another mode.
    Permit,
}

impl Mode {
    #[allow(dead_code, reason = "each feature needs a part")]
    /// All modes, in the order of their numbers.
    pub(crate) const ALL: &'static [Self] = &[Self::Exclusive, Self::Shared, Self::Permit];

    #[allow(dead_code, reason = "each feature needs a part")]
    pub(crate) const COUNT: usize = Self::ALL.len();

    #[allow(dead_code, reason = "each feature needs a part")]
    /// Returns the text of the mode, as in metrics, events and the dashboard.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permit => "permit",
        }
    }
}
