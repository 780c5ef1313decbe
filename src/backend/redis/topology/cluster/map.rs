//! The map from slots to nodes.

use std::sync::Arc;

use redis::Value;

use super::identity::Ids;
use crate::backend::redis::command::SLOTS;
use crate::backend::redis::command::text;
use crate::backend::redis::topology::Node;

/// A view of the cluster, replaced as a whole.
#[derive(Clone, Default)]
pub(crate) struct Map {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// For each node, whether slots were assigned to it.
    serving: Vec<bool>,
    /// For each slot, one more than the index of its node in `nodes`, or 0 without a node.
    slots: Vec<u16>,
}

impl Map {
    pub(crate) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        let index = *self.slots.get(usize::from(slot))?;
        self.nodes.get(usize::from(index.checked_sub(1)?))
    }

    pub(crate) fn slots_of(&self, node: &Node) -> Vec<u16> {
        let owns = |slot: &u16| {
            self.owner(*slot)
                .is_some_and(|it| std::ptr::eq(&**it, node))
        };
        (0..SLOTS).filter(owns).collect()
    }

    pub(crate) fn node_at(&self, address: &str) -> Option<&Arc<Node>> {
        self.nodes.iter().find(|node| node.address() == address)
    }

    /// Assigns slots to a node.
    pub(crate) fn assign(&mut self, slots: impl IntoIterator<Item = u16>, node: &Arc<Node>) {
        let known = self.nodes.iter().position(|it| Arc::ptr_eq(it, node));
        let index = known.unwrap_or_else(|| {
            self.nodes.push(Arc::clone(node));
            self.serving.push(false);
            self.nodes.len() - 1
        });
        self.slots.resize(usize::from(SLOTS), 0);
        // There are at most as many nodes as slots: a node without slots soon leaves the map.
        let owner = u16::try_from(index + 1).unwrap_or(0);
        for slot in slots {
            if let Some(entry) = self.slots.get_mut(usize::from(slot)) {
                *entry = owner;
                self.serving[index] = true;
            }
        }
    }

    /// Returns `true` if `next` lacks a node that had slots, or has nodes for slots without one. A slot that
    /// moves between two nodes takes its locks along. The first map recovers nothing.
    pub(crate) fn is_recovered_by(&self, next: &Self) -> bool {
        if self.nodes.is_empty() {
            return false;
        }
        let mut nodes = self.nodes.iter().zip(&self.serving);
        nodes.any(|(node, serving)| *serving && !next.nodes.iter().any(|it| Arc::ptr_eq(it, node)))
            || (0..SLOTS).any(|slot| self.owner(slot).is_none() && next.owner(slot).is_some())
    }
}

/// What one node replied.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) ranges: Vec<Range>,
    pub(super) ids: Ids,
}

/// The slots `first..=last`, which the node at `host` and `port` serves.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Range {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// Parses the reply to `CLUSTER SLOTS`, `[[first, last, [host, port, id, …], replicas…], …]`, and sorts it by
/// slot.
///
/// Returns `None` for any other reply, or one without a slot that has a known node. `own_host` is that of the node that replied.
pub(super) fn parse(reply: &Value, own_host: &str) -> Option<View> {
    let Value::Array(entries) = reply else {
        return None;
    };
    let ranges = entries.iter().map(|entry| range(entry, own_host));
    let mut ranges = ranges.collect::<Option<Vec<_>>>()?;
    // The cluster knows no address of the node any more.
    ranges.retain(|range| range.port != 0);
    ranges.sort_unstable();
    let ids = entries.iter().flat_map(ids).collect();
    (!ranges.is_empty()).then_some(View { ranges, ids })
}

/// Returns the ids of the primary and the replicas.
fn ids(entry: &Value) -> impl Iterator<Item = String> {
    let nodes = match entry {
        Value::Array(entry) => entry.get(2..).unwrap_or_default(),
        _ => &[],
    };
    nodes.iter().filter_map(|node| match node {
        Value::Array(node) => text(node.get(2)?),
        _ => None,
    })
}

fn range(entry: &Value, own_host: &str) -> Option<Range> {
    let Value::Array(entry) = entry else {
        return None;
    };
    let [first, last, Value::Array(primary), ..] = &entry[..] else {
        return None;
    };
    let [host, port, ..] = &primary[..] else {
        return None;
    };
    // An empty host or `?` means that the node does not know its own name.
    let host = text(host).filter(|host| !host.is_empty() && host != "?");
    let (first, last) = (number(first)?, number(last)?);
    (first <= last && last < SLOTS).then_some(())?;
    Some(Range {
        first,
        last,
        host: host.unwrap_or_else(|| own_host.to_owned()),
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
    fn missing_host_is_host_of_replying_node() {
        let reply = Value::Array(vec![
            entry(6, 16_383, host(""), 2),
            entry(0, 5, host("a"), 1),
        ]);
        let ranges = parse(&reply, "own").unwrap().ranges;
        assert_eq!(ranges[0].host, "a");
        assert_eq!((ranges[1].first, ranges[1].last), (6, 16_383));
        assert_eq!((ranges[1].host.as_str(), ranges[1].port), ("own", 2));
    }

    #[test]
    fn slots_of_node_without_address_have_no_node() {
        let [lost, known] = [entry(0, 5, host(""), 0), entry(6, 16_383, host("a"), 1)];
        let ranges = parse(&Value::Array(vec![lost, known]), "own")
            .unwrap()
            .ranges;
        assert_eq!(ranges.len(), 1);
        assert_eq!(ranges[0].host, "a");
    }

    #[test]
    fn ids_are_those_of_primaries_and_replicas() {
        let node = |id| Value::Array(vec![host("h"), Value::Int(1), host(id)]);
        let slots = [0, 16_383].map(Value::Int).to_vec();
        let entry = Value::Array([slots, vec![node("a"), node("b")]].concat());
        let view = parse(&Value::Array(vec![entry]), "own").unwrap();
        assert_eq!(view.ids, ["a", "b"].map(ToOwned::to_owned).into());
    }

    #[test]
    fn malformed_reply_is_no_map() {
        for reply in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![entry(0, 70_000, host("a"), 1)]),
            Value::Array(vec![entry(0, 16_384, host("a"), 1)]),
        ] {
            assert_eq!(parse(&reply, "own"), None);
        }
    }
}
