//! Keys from any input.

use proptest::prelude::*;
use tower_lock::keys::InvalidKey;
use tower_lock::{LockKey, LockKeys};

fn canonical(path: &str) -> Result<LockKey, InvalidKey> {
    let key = LockKey::from_path(path);
    key.validate().map(|()| key)
}

/// Encodes every byte except slashes.
fn escaped(path: &str) -> String {
    let escape = |byte| match byte {
        b'/' => "/".to_owned(),
        byte => format!("%{byte:02x}"),
    };
    path.bytes().map(escape).collect()
}

proptest! {
    #[test]
    fn parts_are_encoded_injectively(
        a in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..6), 1..4),
        b in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..6), 1..4),
    ) {
        prop_assert_eq!(LockKey::from_parts(&a) == LockKey::from_parts(&b), a == b);
    }

    #[test]
    fn close_parts_are_encoded_injectively(
        a in prop::collection::vec("[ab:%{}3A]{1,3}", 1..4),
        b in prop::collection::vec("[ab:%{}3A]{1,3}", 1..4),
    ) {
        prop_assert_eq!(LockKey::from_parts(&a) == LockKey::from_parts(&b), a == b);
    }

    #[test]
    fn names_are_encoded_injectively(a in "[a:%{}7BD#]{1,6}", b in "[a:%{}7BD#]{1,6}") {
        prop_assert_eq!(LockKey::new(&a) == LockKey::new(&b), a == b);
    }

    #[test]
    fn long_names_are_encoded_injectively(
        a in prop::collection::vec(any::<u8>(), 500..600),
        b in prop::collection::vec(any::<u8>(), 500..600),
    ) {
        prop_assert_eq!(LockKey::new(&a) == LockKey::new(&b), a == b);
    }

    #[test]
    fn every_key_is_bounded_and_free_of_controls(
        bytes in prop::collection::vec(any::<u8>(), 1..2000),
    ) {
        for key in [LockKey::new(&bytes), LockKey::from_parts([&bytes])] {
            prop_assert!(key.as_str().len() <= LockKey::MAX_LEN);
            prop_assert!(!key.as_str().is_empty());
            prop_assert!(!key.as_str().chars().any(char::is_control));
        }
    }

    #[test]
    fn remaining_braces_are_one_tag_for_key_and_channel(name in "[ab{}]{1,12}") {
        let key = LockKey::new(&name);
        let text = key.as_str();
        if let Some(open) = text.find('{') {
            let close = text[open..].find('}').map(|at| at + open);
            prop_assert!(close.is_some_and(|close| close > open + 1));
        } else {
            let closes = text.contains('}');
            prop_assert!(!closes);
        }
    }

    #[test]
    fn escapes_change_nothing(path in "/[a-c.~@:%é/]{0,12}") {
        let plain = path.replace('%', "%25");
        let lower = escaped(&path);
        let upper = lower.to_uppercase();
        prop_assert_eq!(canonical(&lower), canonical(&plain));
        prop_assert_eq!(canonical(&upper), canonical(&plain));
    }

    #[test]
    fn paths_with_other_segments_stay_apart(
        a in prop::collection::vec("[ab%2F]{1,3}", 0..4),
        b in prop::collection::vec("[ab%2F]{1,3}", 0..4),
    ) {
        let path = |segments: &[String]| escaped(&format!("/{}", segments.join("/")));
        prop_assert_eq!(canonical(&path(&a)) == canonical(&path(&b)), a == b);
    }

    #[test]
    fn keys_of_acquire_are_sorted_and_unique(names in prop::collection::vec("[a-d]{1,2}", 0..20)) {
        let keys: LockKeys = names.iter().collect();
        prop_assert!(keys.as_slice().windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert!(names.iter().all(|name| keys.as_slice().contains(&LockKey::new(name))));
    }
}
