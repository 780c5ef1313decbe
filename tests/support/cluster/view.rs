//! The view that one node of a Cluster has of all nodes.

use std::ops::RangeInclusive;

use crate::support::redis_server::RedisServer;

pub(super) struct View {
    pub(super) nodes: Vec<Node>,
}

pub(super) struct Node {
    pub(super) port: u16,
    /// The id of its primary, or `-`.
    pub(super) primary: String,
    /// The epoch of the election. Of several primaries of a slot, the one with the largest epoch counts.
    pub(super) epoch: u64,
    /// The node is known, connected and not suspected of a failure.
    pub(super) is_up: bool,
    is_myself: bool,
    slots: Vec<RangeInclusive<u16>>,
}

impl View {
    pub(super) fn of(server: &RedisServer) -> Self {
        let answer = server.cli(&["CLUSTER", "NODES"]);
        let nodes = answer.lines().map(|line| {
            Node::parse(line).unwrap_or_else(|| panic!("not a node of a Cluster: {line}"))
        });
        Self {
            nodes: nodes.collect(),
        }
    }

    pub(super) fn myself(&self) -> &Node {
        let mut nodes = self.nodes.iter();
        nodes.find(|node| node.is_myself).expect("itself")
    }

    /// Returns `true` if it reports a node as that node reports itself.
    pub(super) fn has(&self, node: &Node) -> bool {
        let same = |it: &Node| {
            (it.port, &it.primary, &it.slots) == (node.port, &node.primary, &node.slots)
        };
        self.nodes.iter().any(same)
    }
}

impl Node {
    /// Parses `id host:port@bus flags primary ping pong epoch link slot…`, with `[slot->-id]` for a slot in
    /// migration.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<_> = line.split(' ').collect();
        let [_, address, flags, primary, _, _, epoch, link, slots @ ..] = fields.as_slice() else {
            return None;
        };
        let flags: Vec<_> = flags.split(',').collect();
        let address = address.split_once('@')?.0;
        let whole = slots.iter().filter(|slots| !slots.starts_with('['));
        let slots = whole.map(|slots| {
            let (start, end) = slots.split_once('-').unwrap_or((slots, slots));
            Some(start.parse().ok()?..=end.parse().ok()?)
        });
        let is_doubtful = |flag: &&str| ["fail?", "fail", "handshake", "noaddr"].contains(flag);
        Some(Self {
            port: address.rsplit_once(':')?.1.parse().ok()?,
            primary: (*primary).to_owned(),
            epoch: epoch.parse().ok()?,
            is_up: *link == "connected" && !flags.iter().any(is_doubtful),
            is_myself: flags.contains(&"myself"),
            slots: slots.collect::<Option<_>>()?,
        })
    }

    pub(super) fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|slots| slots.contains(&slot))
    }

    pub(super) fn serves_any(&self) -> bool {
        !self.slots.is_empty()
    }
}
