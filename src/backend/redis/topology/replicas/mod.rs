//! Grants that count only when replicas acknowledge them: `replicas` acquires, over a connection of `checkout`.

mod checkout;
#[expect(clippy::module_inception, reason = "the type's own name")]
mod replicas;

pub(crate) use replicas::{MinReplicas, Replicas};
