//! Locks in a real cluster: slots, resharding, nodes that die or hang, and one endpoint in front.

mod endpoint;
mod forced;
mod foreign;
mod migration;
mod outages;
mod resharding;
mod slots;
mod support;
