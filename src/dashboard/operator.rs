use std::sync::Arc;

/// The operator of a request, as the middleware in front of the dashboard has authenticated it.
///
/// The dashboard responds only to requests that have one in their extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator(Arc<str>);

impl Operator {
    /// Creates an operator with the name that the page shows.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}
