//! What must name nobody: I16.

use std::collections::BTreeSet;

use tower_lock::LockManager;

use super::Referee;
use crate::rows::Row;

/// Searches what managers show of themselves, and the errors of refused acquires, for keys, for what
/// all owners and leases of a manager begin with, and for the password.
pub(crate) fn judge(referee: &Referee, managers: &[LockManager], row: &Row) {
    let mut secrets: BTreeSet<String> = managers.iter().map(identity).collect();
    secrets.extend(row.login.map(|(_, login)| password(login)));
    let mut shown: BTreeSet<String> = managers.iter().map(|it| format!("{it:?}")).collect();
    {
        let log = referee.log();
        let held = log.holds.iter().map(|hold| hold.key.clone());
        secrets.extend(held.chain(log.refusals.iter().map(|it| it.key.clone())));
        let errors = log.refusals.iter().flat_map(|it| [&it.why, &it.debug]);
        shown.extend(errors.cloned());
    }
    for text in &shown {
        for secret in secrets.iter().filter(|secret| text.contains(*secret)) {
            referee.violation("I16", format!("{secret:?} in {text:?}"));
        }
    }
}

fn identity(locks: &LockManager) -> String {
    let owner = locks.new_owner().to_string();
    owner.split(':').next().unwrap_or_default().to_owned()
}

fn password(login: &str) -> String {
    login.split(':').next_back().unwrap_or_default().to_owned()
}
