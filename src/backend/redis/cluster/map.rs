//! Which node serves which slot.

use std::sync::Arc;

use redis::Value;

use super::super::node::Node;
use super::super::self_test::text;
use super::slot::SLOTS;

/// One moment's view of a cluster. Replaced as a whole.
#[derive(Clone, Default)]
pub(super) struct Map {
    pub(super) nodes: Vec<Arc<Node>>,
    /// For each slot one more than the place of its node in `nodes`; 0 where there is none.
    slots: Vec<u16>,
}

impl Map {
    pub(super) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        let place = *self.slots.get(usize::from(slot))?;
        self.nodes.get(usize::from(place.checked_sub(1)?))
    }

    pub(super) fn slots_of(&self, node: &Node) -> Vec<u16> {
        let owns = |slot: &u16| {
            self.owner(*slot)
                .is_some_and(|it| std::ptr::eq(&**it, node))
        };
        (0..SLOTS).filter(owns).collect()
    }

    pub(super) fn node_at(&self, address: &str) -> Option<&Arc<Node>> {
        self.nodes.iter().find(|node| node.address() == address)
    }

    /// Gives slots to a node.
    pub(super) fn assign(&mut self, slots: impl IntoIterator<Item = u16>, node: &Arc<Node>) {
        let known = self.nodes.iter().position(|it| Arc::ptr_eq(it, node));
        let place = known.unwrap_or_else(|| {
            self.nodes.push(Arc::clone(node));
            self.nodes.len() - 1
        });
        self.slots.resize(usize::from(SLOTS), 0);
        // At most as many nodes as slots, since one without slots is not in the map for long.
        let place = u16::try_from(place + 1).unwrap_or(0);
        for slot in slots {
            if let Some(owner) = self.slots.get_mut(usize::from(slot)) {
                *owner = place;
            }
        }
    }

    /// Whether both say the same.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        self.slots.len() == other.slots.len()
            && (0..SLOTS).all(|slot| match (self.owner(slot), other.owner(slot)) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                (None, None) => true,
                _ => false,
            })
    }
}

/// Slots `first..=last` are served at `host` (where `None`, that of the node that answered) and
/// `port`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) host: Option<String>,
    pub(super) port: u16,
}

/// The answer to `CLUSTER SLOTS`: `[[first, last, [host, port, …], replicas…], …]`. `None` if it is
/// something else, or names no slot.
pub(super) fn parse(answer: &Value) -> Option<Vec<Range>> {
    let Value::Array(ranges) = answer else {
        return None;
    };
    let ranges: Option<Vec<_>> = ranges.iter().map(range).collect();
    ranges.filter(|ranges| !ranges.is_empty())
}

fn range(entry: &Value) -> Option<Range> {
    let Value::Array(entry) = entry else {
        return None;
    };
    let [first, last, Value::Array(primary), ..] = &entry[..] else {
        return None;
    };
    let [host, port, ..] = &primary[..] else {
        return None;
    };
    // Empty or `?`: the node does not know how it is called.
    let host = text(host).filter(|host| !host.is_empty() && host != "?");
    Some(Range {
        first: number(first)?,
        last: number(last)?,
        host,
        port: number(port)?,
    })
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = Value::Array(vec![host, Value::Int(port)]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary])
    }

    fn host(name: &str) -> Value {
        Value::BulkString(name.as_bytes().to_vec())
    }

    #[test]
    fn an_answer_is_read_and_a_missing_host_is_that_of_whoever_answered() {
        let answer = Value::Array(vec![
            entry(0, 5, host("a"), 1),
            entry(6, 16_383, host(""), 2),
        ]);
        let ranges = parse(&answer).unwrap();
        assert_eq!(ranges[0].host.as_deref(), Some("a"));
        assert_eq!((ranges[1].first, ranges[1].last), (6, 16_383));
        assert_eq!((&ranges[1].host, ranges[1].port), (&None, 2));
    }

    #[test]
    fn anything_else_is_no_map() {
        for answer in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![entry(0, 70_000, host("a"), 1)]),
        ] {
            assert_eq!(parse(&answer), None);
        }
    }
}
