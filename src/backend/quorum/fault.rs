//! Why a quorum has no outcome.

use std::time::Duration;

use crate::backend::{BackendError, BackendErrorKind};

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("no answer from the node within {0:?}")]
    Silent(Duration),
    #[error("the node is still busy with an earlier command for this lease")]
    Engaged,
    #[error("{failed} of {nodes} nodes gave no outcome")]
    NoMajority {
        failed: usize,
        nodes: usize,
        #[source]
        first: Option<BackendError>,
    },
}

/// A node was waited for long enough.
pub(super) fn silent(waited: Duration) -> BackendError {
    BackendError::unknown(Trouble::Silent(waited))
}

/// Nothing was sent to a node, since something is under way.
pub(super) fn engaged() -> BackendError {
    BackendError::unknown(Trouble::Engaged)
}

/// Too few nodes gave an outcome. `unsettled`: something may have taken effect and stayed.
///
/// What no try can mend is said only if a majority of the nodes says the same.
pub(super) fn no_majority(
    failures: Vec<BackendError>,
    nodes: usize,
    unsettled: bool,
) -> BackendError {
    let agreed = [BackendErrorKind::Misconfigured, BackendErrorKind::Conflict]
        .into_iter()
        .find(|kind| {
            2 * failures
                .iter()
                .filter(|error| error.kind() == *kind)
                .count()
                > nodes
        });
    let trouble = |failures: Vec<BackendError>| Trouble::NoMajority {
        failed: failures.len(),
        nodes,
        first: failures.into_iter().next(),
    };
    match agreed {
        Some(kind) => BackendError::refused(kind, trouble(failures)),
        None if unsettled => BackendError::unknown(trouble(failures)),
        None => BackendError::refused(BackendErrorKind::Unavailable, trouble(failures)),
    }
}
