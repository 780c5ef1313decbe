//! The errors of a quorum.

use crate::backend::{BackendError, BackendErrorKind};

#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    /// Nothing was sent to the node, because a command is in flight.
    #[error("node is busy with an earlier command for this lease")]
    Engaged,
    /// Nothing was sent to the node, because it owes too many releases.
    #[error("node has not confirmed earlier releases")]
    Behind,
    #[error(
        "nodes {0} and {1} are one server, which would vote twice: use servers that share nothing"
    )]
    SameServer(usize, usize),
    #[error("of {nodes} nodes, {failed} failed and {silent} did not reply")]
    NoMajority {
        nodes: usize,
        failed: usize,
        silent: usize,
        #[source]
        first: Option<BackendError>,
    },
}

/// Creates the error of too few outcomes. `silent`: the number of nodes without a reply. `unsettled`: a lease may
/// remain at a node.
///
/// A permanent kind requires that a majority of the nodes reports it.
pub(super) fn no_majority(
    failures: Vec<BackendError>,
    silent: usize,
    nodes: usize,
    unsettled: bool,
) -> BackendError {
    let permanent = [
        BackendErrorKind::Misconfigured,
        BackendErrorKind::Conflict,
        BackendErrorKind::Unsupported,
    ];
    let agreed = permanent.into_iter().find(|kind| {
        2 * failures
            .iter()
            .filter(|error| error.kind() == *kind)
            .count()
            > nodes
    });
    let cause = Cause::NoMajority {
        nodes,
        failed: failures.len(),
        silent,
        first: failures.into_iter().next(),
    };
    match agreed {
        None if unsettled => BackendError::unknown(cause),
        kind => BackendError::refused(kind.unwrap_or(BackendErrorKind::Unavailable), cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permanent_kind_requires_majority() {
        let conflict = BackendErrorKind::Conflict;
        let down = BackendErrorKind::Unavailable;
        for (nodes, conflicts, expected) in [
            (3, 2, conflict),
            (3, 1, down),
            (4, 3, conflict),
            (4, 2, down),
            (5, 2, down),
            (5, 5, conflict),
        ] {
            let kinds = (0..nodes).map(|node| if node < conflicts { conflict } else { down });
            let failures = kinds.map(|kind| BackendError::refused(kind, "failed"));
            let error = no_majority(failures.collect(), 0, nodes, false);
            assert_eq!(error.kind(), expected, "{conflicts} of {nodes}");
        }
    }

    #[test]
    fn unsettled_command_may_have_taken_effect() {
        for unsettled in [true, false] {
            let error = no_majority(vec![BackendError::unknown(Cause::Engaged)], 0, 3, unsettled);
            assert_eq!(error.may_have_taken_effect(), unsettled);
        }
    }
}
