//! One spelling for all paths that RFC 3986 calls equivalent.

use std::borrow::Cow;

/// The path holds a `%` that two hex digits do not follow, or a segment `.` or `..`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidPath;

/// Normalises a path by RFC 3986 §6.2.2: unreserved characters decoded, everything else that a
/// path cannot hold encoded with upper-case hex digits, an empty path is `/`.
///
/// `%2F` stays apart from `/`, and so do case and a trailing slash: those are different resources.
/// Dot segments are refused. Clients resolve them before they send a request, routers do not: taking
/// them out would lock the path of a route that does not serve the request.
pub(super) fn normalise(path: &str) -> Result<Cow<'_, str>, InvalidPath> {
    if path.is_empty() {
        return Ok(Cow::Borrowed("/"));
    }
    // Most paths, and so worth more than a search of the general kind.
    let starts_with_a_dot = |pair: &[u8]| pair == b"/.";
    if path.bytes().all(stands_for_itself) && !path.as_bytes().windows(2).any(starts_with_a_dot) {
        return Ok(Cow::Borrowed(path));
    }
    let path = normalise_escapes(path.as_bytes())?;
    // After the escapes: `%2E%2E` is a dot segment too.
    if path.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err(InvalidPath);
    }
    Ok(Cow::Owned(path))
}

fn normalise_escapes(mut path: &[u8]) -> Result<String, InvalidPath> {
    let mut out = String::with_capacity(path.len() + 8);
    loop {
        path = match path {
            [] => return Ok(out),
            [b'%', high, low, rest @ ..] => {
                let byte = (hex(*high)? << 4) | hex(*low)?;
                if is_unreserved(byte) {
                    out.push(char::from(byte));
                } else {
                    escape(byte, &mut out);
                }
                rest
            }
            [b'%', ..] => return Err(InvalidPath),
            [byte, rest @ ..] => {
                if stands_for_itself(*byte) {
                    out.push(char::from(*byte));
                } else {
                    escape(*byte, &mut out);
                }
                rest
            }
        };
    }
}

fn hex(digit: u8) -> Result<u8, InvalidPath> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(InvalidPath),
    }
}

fn escape(byte: u8, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(char::from(DIGITS[usize::from(byte >> 4)]));
    out.push(char::from(DIGITS[usize::from(byte & 15)]));
}

fn is_unreserved(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~')
}

/// `pchar` without escapes, and the slash.
fn stands_for_itself(byte: u8) -> bool {
    // From one pattern the compiler makes one look into a set of bits.
    is_unreserved(byte)
        || matches!(
            byte,
            b'!' | b'$' | b'&'..=b',' | b'/' | b':' | b';' | b'=' | b'@'
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normal(path: &str) -> String {
        normalise(path).expect("a valid path").into_owned()
    }

    /// Any path: literal characters, escapes in both cases, dots, slashes.
    fn paths() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            4 => "[a-zA-Z0-9._~!$&'()*+,;=:@|é-]",
            4 => Just("/".to_owned()),
            3 => Just(".".to_owned()),
            3 => any::<u8>().prop_map(|byte| format!("%{byte:02x}")),
            3 => any::<u8>().prop_map(|byte| format!("%{byte:02X}")),
        ];
        prop::collection::vec(piece, 0..24).prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    proptest! {
        #[test]
        fn normalising_twice_changes_nothing(path in paths()) {
            if let Ok(once) = normalise(&path) {
                prop_assert_eq!(normalise(&once), Ok(Cow::Borrowed(&*once)));
            }
        }

        #[test]
        fn escaping_unreserved_characters_changes_nothing(path in "/[a-zA-Z0-9._~/-]{0,24}") {
            let escaped: String = path
                .bytes()
                .map(|byte| match byte {
                    b'/' => "/".to_owned(),
                    byte => format!("%{byte:02x}"),
                })
                .collect();
            prop_assert_eq!(normalise(&escaped), normalise(&path));
        }

        #[test]
        fn a_normal_path_holds_no_dot_segment_and_no_lower_case_escape(path in paths()) {
            let Ok(path) = normalise(&path) else {
                return Ok(());
            };
            prop_assert!(path.starts_with('/'));
            prop_assert!(path.split('/').all(|segment| segment != "." && segment != ".."));
            let lower_case = path
                .split('%')
                .skip(1)
                .any(|rest| rest.bytes().take(2).any(|digit| !matches!(digit, b'0'..=b'9' | b'A'..=b'F')));
            prop_assert!(!lower_case);
        }

        #[test]
        fn paths_that_differ_in_what_a_handler_sees_stay_apart(
            a in "/[a-b/]{0,6}", b in "/[a-b/]{0,6}",
        ) {
            prop_assert_eq!(normal(&a) == normal(&b), a == b);
        }
    }

    #[test]
    fn dot_segments_are_refused() {
        for path in ["/a/../b", "/a/./b", "/..", "/a/.", "/a/%2e%2E/b", "/%2e"] {
            assert_eq!(normalise(path), Err(InvalidPath), "{path}");
        }
        for path in ["/...", "/.hidden", "/a..b/c."] {
            assert_eq!(normal(path), path);
        }
    }

    #[test]
    fn equivalent_spellings_are_one_and_different_resources_are_two() {
        for (path, expected) in [
            ("", "/"),
            ("/", "/"),
            ("*", "*"),
            ("/%41", "/A"),
            ("/%7Ea", "/~a"),
            ("/a%2fb", "/a%2Fb"),
            ("/é", "/%C3%A9"),
            ("/%c3%a9", "/%C3%A9"),
            ("/a/", "/a/"),
            ("/A", "/A"),
            ("/a%25zz", "/a%25zz"),
        ] {
            assert_eq!(normal(path), expected, "{path}");
        }
    }

    #[test]
    fn broken_escapes_are_refused() {
        for path in ["/%", "/%4", "/%zz", "/a%4/b", "/%+1"] {
            assert_eq!(normalise(path), Err(InvalidPath), "{path}");
        }
    }

    #[test]
    fn a_normal_path_is_not_copied() {
        assert!(matches!(normalise("/orders/42"), Ok(Cow::Borrowed(_))));
    }
}
