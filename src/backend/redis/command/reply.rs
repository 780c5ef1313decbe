//! The meaning of replies.

use std::time::Duration;

use redis::Value;

use super::error::{CommandError, no_ttl, refusal, unexpected};
use crate::backend::{Acquired, BackendError, Contended, Holder, Released, Renewed};
use crate::observe;

/// What the outcome of a release has in addition for each waiter that was passed over.
const PASSED_OVER: u64 = 10;

/// One outcome per key of a call, or the failure of the whole call.
pub(crate) type Outcomes<T> = Result<Vec<Result<T, BackendError>>, CommandError>;

/// Turns the failure of a call into a failure of each key.
pub(crate) fn spread<T>(outcomes: Outcomes<T>, items: usize) -> Vec<Result<T, BackendError>> {
    outcomes.unwrap_or_else(|error| {
        let error = BackendError::from(error);
        (0..items).map(|_| Err(error.clone())).collect()
    })
}

/// Returns one reply per item.
pub(super) fn list(reply: Value, items: usize) -> Result<Vec<Value>, CommandError> {
    match reply {
        Value::Array(replies) if replies.len() == items => Ok(replies),
        reply if items == 1 => Ok(vec![reply]),
        reply => Err(CommandError::Refused(unexpected(&reply))),
    }
}

/// Returns the outcomes of `release` or `leave`. `absent` is that of a lease that did not hold its key.
pub(super) fn releases(reply: Value, releases: usize, absent: Released) -> Outcomes<Released> {
    if reply == Value::Int(1) {
        return Ok((0..releases).map(|_| Ok(Released::Released)).collect());
    }
    let outcome = |reply| released(&reply, absent);
    Ok(each(list(reply, releases)?, outcome))
}

/// Returns the outcome of each reply.
pub(super) fn each<T>(
    replies: impl IntoIterator<Item = Value>,
    mut outcome: impl FnMut(Value) -> Result<T, BackendError>,
) -> Vec<Result<T, BackendError>> {
    let outcome = |reply| match reply {
        Value::ServerError(error) => Err(refusal(error)),
        reply => outcome(reply),
    };
    replies.into_iter().map(outcome).collect()
}

/// Returns the outcomes of `acquire_all` or `share`. If all of several are granted, they have consecutive counters from
/// the first on.
pub(super) fn acquires(reply: Value, acquires: usize) -> Outcomes<Acquired> {
    match reply {
        Value::Int(first @ 1..) if acquires > 1 => {
            let counters = (first.unsigned_abs()..).take(acquires);
            Ok(counters.map(|it| Ok(Acquired::granted(it))).collect())
        }
        reply => Ok(each(list(reply, acquires)?, acquired)),
    }
}

/// Returns the outcome of a renewal in any mode.
pub(super) fn renewed(reply: Value) -> Result<Renewed, BackendError> {
    match reply {
        Value::Int(0) => Ok(Renewed::NotHeld),
        Value::Int(1) => Ok(Renewed::Renewed),
        Value::Int(2) => Ok(Renewed::Wanted),
        reply => Err(unexpected(&reply)),
    }
}

/// Returns the outcome of a release. `absent` is the outcome if the lease did not hold the key.
pub(super) fn released(reply: &Value, absent: Released) -> Result<Released, BackendError> {
    match reply {
        Value::Int(0) => Ok(absent),
        Value::Int(freed) => Ok(served(freed.unsigned_abs())),
        reply => Err(unexpected(reply)),
    }
}

/// Counts what the queue did with a free key, and returns it.
fn served(freed: u64) -> Released {
    observe::passed_over(freed / PASSED_OVER);
    match freed % PASSED_OVER {
        2 => {
            observe::transferred();
            Released::Transferred
        }
        3 => Released::LeftToOthers,
        _ => Released::Released,
    }
}

/// Returns the time until the next attempt, and the error of a place in the queue that the server rejected.
pub(super) fn rejected_place(reply: &Value) -> Option<(Duration, BackendError)> {
    let Value::Array(fields) = reply else {
        return None;
    };
    match &fields[..] {
        [Value::Int(left), Value::ServerError(error)] => {
            Some((remaining(*left), refusal(error.clone())))
        }
        _ => None,
    }
}

/// Returns the outcome of `contend`.
pub(super) fn contended(reply: Value) -> Result<Contended, BackendError> {
    let fields = match &reply {
        Value::Array(fields) => &fields[..],
        _ => &[],
    };
    let numbers: Vec<_> = fields.iter().map_while(number).collect();
    match (&numbers[..], granted(&reply)) {
        ([_, _, passed_over], Some(counter)) => {
            observe::passed_over(passed_over.unsigned_abs());
            return Ok(Contended::granted(counter));
        }
        ([left, queued, poll_after, freed, ..], _) => {
            // The key can be free, and then goes to another process.
            served(freed.unsigned_abs());
            let queued = u32::try_from(*queued).unwrap_or(0);
            let poll_after = (*poll_after > 0).then(|| remaining(*poll_after));
            return Ok(Contended::polling(remaining(*left), queued, poll_after));
        }
        ([_, idle], _) => observe::confirmed(Duration::from_millis(idle.unsigned_abs())),
        _ => {}
    }
    acquired(reply).map(Contended::of)
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

/// Returns `true` if the reply is a repeated grant, or confirms a transfer.
pub(crate) fn is_granted_again(reply: &Value) -> bool {
    matches!(reply, Value::Array(again) if again.len() < 3 && again.first().and_then(granted).is_some())
}

/// Returns the counter of a first grant.
pub(crate) fn granted(reply: &Value) -> Option<u64> {
    match reply {
        // `PTTL` returns no number below -2.
        Value::Int(granted @ ..-2) => Some(granted.abs_diff(-2)),
        // Waiters were passed over.
        Value::Array(first) if first.len() == 3 => first.first().and_then(granted),
        _ => None,
    }
}

pub(super) fn acquired(reply: Value) -> Result<Acquired, BackendError> {
    let counter = match &reply {
        Value::Int(-1) => return Err(no_ttl()),
        Value::Int(left @ -2..) => return Ok(Acquired::busy(remaining(*left))),
        // A repeated grant.
        Value::Array(again) => again.first().and_then(granted),
        // A vote.
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok().and_then(|n| n.parse().ok()),
        reply => granted(reply),
    };
    counter
        .map(Acquired::granted)
        .ok_or_else(|| unexpected(&reply))
}

/// Returns the holder. Without the permission to read it, its id is empty.
pub(super) fn holder(reply: Value) -> Result<Option<Holder>, BackendError> {
    let fields = match reply {
        Value::Nil => return Ok(None),
        Value::Array(fields) => fields,
        reply => return Err(unexpected(&reply)),
    };
    let left = match fields.first() {
        Some(Value::Int(-1)) => return Err(no_ttl()),
        Some(Value::Int(left)) => remaining(*left),
        _ => return Err(unexpected(&Value::Array(fields))),
    };
    let queued = match fields.get(1) {
        Some(Value::Int(queued)) => u32::try_from(*queued).unwrap_or(0),
        _ => 0,
    };
    let text = |index: usize| match fields.get(index) {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    let hold_count = text(3).parse().unwrap_or(1);
    let name = text(2);
    let holder = |id: &str| Holder::new(id.to_owned(), left, hold_count).with_queued(queued);
    Ok(Some(match fields.get(4) {
        // The field of one of several leases is its name, of which the first letter is the mode.
        Some(Value::Int(leases)) => {
            let leases = u32::try_from(*leases).unwrap_or(u32::MAX);
            match name.strip_prefix('p') {
                Some(permit) => holder(permit).with_permits(leases),
                None => holder(name.strip_prefix('s').unwrap_or_default()).with_shared(leases),
            }
        }
        _ => holder(&name),
    }))
}

pub(super) fn remaining(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Returns a rejection if the reply to `HELLO` names the role of a replica. A proxy may name none.
pub(crate) fn not_primary(hello: &Value) -> Option<Value> {
    let role = entry(hello, "role")?;
    let rejection = || redis::parse_redis_value(b"-READONLY server is not the primary\r\n").ok();
    (role != "master").then(rejection).flatten()
}

/// Returns an entry of a map, in the form of either protocol version.
pub(crate) fn entry(reply: &Value, name: &str) -> Option<String> {
    let is_it = |key: &Value| text(key).is_some_and(|key| key == name);
    match reply {
        Value::Array(flat) => {
            let at = flat.iter().step_by(2).position(is_it)?;
            text(flat.get(2 * at + 1)?)
        }
        Value::Map(pairs) => pairs
            .iter()
            .find(|(key, _)| is_it(key))
            .and_then(|(_, value)| text(value)),
        _ => None,
    }
}

pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}
