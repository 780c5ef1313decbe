//! The primary of a service, as its sentinels report it.
//!
//! | file | responsibility |
//! |---|---|
//! | `question` | one sentinel: its connection, and the question that it is asked |
//! | `votes` | the replies of one round |
//! | `known` | the server that is known to be the primary |
//! | `sentinels` | rounds of questions, at intervals and for each new connection |
//!
//! # The rule
//!
//! 1. If more than half of the sentinels in the URL name the same server, it is the primary, whatever was
//!    known before.
//! 2. While no majority names one, the known primary stays: a sentinel that was cut off names a previous
//!    one. After 2 s without a majority, a server of a later failover replaces it, even if only one
//!    sentinel names it. Each failover has a number, the configuration epoch, and a majority of all
//!    sentinels elects the sentinel that performs it. A stale sentinel reports an earlier epoch.
//! 3. If none is known, the server of the latest failover counts. Without epochs, the one that most
//!    sentinels name is good enough for a new connection.
//! 4. In any case, the server itself must confirm that it is the primary.
//!
//! So a stale primary never replaces a known one without a majority, and the true new one is accepted as
//! soon as any sentinel of the URL reports its failover. The others may be unreachable, or replaced by
//! sentinels at new addresses, which take part in elections, but are not asked.
//!
//! The epoch comes from `SENTINEL MASTER`. A sentinel user without `+sentinel|master` has no epochs, and
//! then only a majority replaces a known primary.

mod known;
mod question;
mod sentinels;
mod votes;

pub(crate) use sentinels::Sentinels;
