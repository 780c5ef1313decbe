//! I16: the texts that must contain no secret.

use std::collections::BTreeSet;

use tower_lock::LockManager;

use super::Referee;
use crate::rows::Row;

/// Searches the shown texts for keys, for the prefix of a manager's owners and leases, and for the
/// password.
pub(crate) fn judge(referee: &Referee, managers: &[LockManager], row: &Row) {
    let mut secrets: BTreeSet<String> = managers.iter().map(identity).collect();
    secrets.extend(row.login.map(|(_, login)| password(login)));
    let shown = {
        let log = referee.log();
        let held = log.holds.iter().map(|hold| hold.key.clone());
        secrets.extend(held.chain(log.refusals.iter().map(|it| it.key.clone())));
        log.shown.clone()
    };
    for text in &shown {
        for secret in secrets.iter().filter(|secret| text.contains(*secret)) {
            referee.violation("I16", format!("{secret:?} in {text:?}"));
        }
    }
}

/// Returns the name of a manager, which is the prefix of its owners and leases.
pub(crate) fn identity(locks: &LockManager) -> String {
    let owner = locks.new_owner().to_string();
    owner.split(':').next().unwrap_or_default().to_owned()
}

fn password(login: &str) -> String {
    login.split(':').next_back().unwrap_or_default().to_owned()
}
