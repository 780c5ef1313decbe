//! One spelling for all paths that RFC 3986 calls equivalent.

use std::borrow::Cow;

/// The path holds a `%` that two hex digits do not follow.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidEscape;

/// Normalises a path by RFC 3986 §6.2.2: unreserved characters decoded, everything else that a
/// path cannot hold encoded with upper-case hex digits, dot segments removed, an empty path is `/`.
///
/// `%2F` stays apart from `/`, and so do case and a trailing slash: those are different resources.
pub(super) fn normalise(path: &str) -> Result<Cow<'_, str>, InvalidEscape> {
    if path.is_empty() {
        return Ok(Cow::Borrowed("/"));
    }
    if path.bytes().all(stands_for_itself) && !path.contains("/.") {
        return Ok(Cow::Borrowed(path));
    }
    // Escapes first: `%2E%2E` is a dot segment too.
    let path = normalise_escapes(path.as_bytes())?;
    Ok(Cow::Owned(remove_dot_segments(path)))
}

fn normalise_escapes(mut path: &[u8]) -> Result<String, InvalidEscape> {
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
            [b'%', ..] => return Err(InvalidEscape),
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

/// RFC 3986 §5.2.4. A path that does not begin with a slash (`*`) has no segments.
fn remove_dot_segments(path: String) -> String {
    let Some(relative) = path.strip_prefix('/') else {
        return path;
    };
    let mut kept = Vec::new();
    let mut segments = relative.split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                // `/a/.` and `/a/b/..` name the directory: `/a/`.
                if is_last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    kept.iter().flat_map(|segment| ["/", segment]).collect()
}

fn hex(digit: u8) -> Result<u8, InvalidEscape> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(InvalidEscape),
    }
}

fn escape(byte: u8, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push('%');
    out.push(char::from(DIGITS[usize::from(byte >> 4)]));
    out.push(char::from(DIGITS[usize::from(byte & 15)]));
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// `pchar` without escapes, and the slash.
fn stands_for_itself(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,;=:@/".contains(&byte)
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
            let once = normal(&path);
            prop_assert_eq!(normal(&once), once);
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
            prop_assert_eq!(normal(&escaped), normal(&path));
        }

        #[test]
        fn a_normal_path_holds_no_dot_segment_and_no_lower_case_escape(path in paths()) {
            let path = normal(&path);
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
    fn dot_segments_are_removed_as_in_the_rfc() {
        for (path, expected) in [
            ("/a/b/c/./../../g", "/a/g"),
            ("/mid/content=5/../6", "/mid/6"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/..", "/"),
            ("/../../a", "/a"),
            ("/a//../b", "/a/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/...", "/..."),
            ("/.hidden", "/.hidden"),
        ] {
            assert_eq!(normal(path), expected, "{path}");
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
            assert_eq!(normalise(path), Err(InvalidEscape), "{path}");
        }
    }

    #[test]
    fn a_normal_path_is_not_copied() {
        assert!(matches!(normalise("/orders/42"), Ok(Cow::Borrowed(_))));
    }
}
