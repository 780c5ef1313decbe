//! The slots of a cluster.

use std::sync::LazyLock;

use crc::{CRC_16_XMODEM, Crc, Table};

pub(crate) const SLOTS: u16 = 16_384;

static CRC: Crc<u16, Table<1>> = Crc::<u16, Table<1>>::new(&CRC_16_XMODEM);

/// Returns the slot of a name: that of the text between its first `{` and the next `}`, unless it is empty.
///
/// Source: Redis Cluster Specification, "Hash tags".
pub(crate) fn slot_of(name: &str) -> u16 {
    let tag = name.split_once('{').and_then(|(_, rest)| {
        let (tag, _) = rest.split_once('}')?;
        (!tag.is_empty()).then_some(tag)
    });
    CRC.checksum(tag.unwrap_or(name).as_bytes()) % SLOTS
}

const TAG_LEN: usize = "{fencing-token:000000}%".len();

/// Returns the end of the name of a slot's fencing counter. It contains a tag that hashes to the slot.
pub(crate) fn fence_of(slot: u16) -> &'static str {
    /// The ends of all slots, each of the same length.
    static FENCES: LazyLock<String> = LazyLock::new(|| {
        let mut tags = vec![None; usize::from(SLOTS)];
        let mut missing = tags.len();
        // About 170,000 numbers are tried, the same ones in every process.
        for number in 0..1_000_000 {
            let tag = format!("{{fencing-token:{number:06}}}%");
            let slot = &mut tags[usize::from(slot_of(&tag))];
            if slot.is_none() {
                *slot = Some(tag);
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        tags.into_iter().flatten().collect()
    });
    let start = usize::from(slot) * TAG_LEN;
    &FENCES[start..start + TAG_LEN]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_matches_specification() {
        for (name, slot) in [
            ("123456789", 12_739),
            ("foo", 12_182),
            ("{foo}:bar", 12_182),
            ("a{foo}b{c}", 12_182),
            ("", 0),
        ] {
            assert_eq!(slot_of(name), slot, "{name}");
        }
        // An empty tag does not count.
        assert_ne!(slot_of("{}foo"), slot_of("foo"));
    }

    #[test]
    fn counter_of_slot_hashes_to_slot() {
        for slot in 0..SLOTS {
            assert_eq!(slot_of(fence_of(slot)), slot);
        }
    }
}
