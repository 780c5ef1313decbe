//! The canonical form of a request path.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use super::invalid::InvalidKey;

/// Decodes a path once, and removes the slashes that middleware adds or removes.
///
/// A router matches the path as it was sent and decodes each parameter. Two paths with the same parameters in one
/// route are therefore equal after decoding. Middleware and proxies in front of a router merge runs of slashes, remove
/// slashes at both ends, or append one, and the lock can be on either side of them. `Router::nest_service` serves its
/// prefix with and without a slash. The result thus begins with a slash, and has no run of them and none at its end.
///
/// Dot segments are rejected. Clients and proxies resolve them, and routers do not. A resolved path would be the
/// lock of another route.
pub(super) fn canonical(path: &str) -> Result<Cow<'_, [u8]>, InvalidKey> {
    let mut path = match path.contains('%') {
        true if has_broken_escape(path.as_bytes()) => {
            return Err(InvalidKey::Undecodable("path".into()));
        }
        true => Cow::from(percent_decode(path.as_bytes())),
        false => Cow::Borrowed(path.as_bytes()),
    };
    // Most paths have no dot.
    if path.contains(&b'.') && path.split(|&byte| byte == b'/').any(is_dot_segment) {
        return Err(InvalidKey::DotSegment);
    }
    if !path.starts_with(b"/") {
        path.to_mut().insert(0, b'/');
    }
    // Most paths have no run of slashes.
    if path.windows(2).any(|pair| pair == b"//") {
        path.to_mut()
            .dedup_by(|next, last| [*next, *last] == *b"//");
    }
    if let [_, .., b'/'] = path[..] {
        let end = path.len() - 1;
        match &mut path {
            Cow::Borrowed(path) => *path = &path[..end],
            Cow::Owned(path) => path.truncate(end),
        }
    }
    Ok(path)
}

fn is_dot_segment(segment: &[u8]) -> bool {
    matches!(segment, b"." | b"..")
}

/// Returns `true` if two hexadecimal digits do not follow each `%`.
fn has_broken_escape(path: &[u8]) -> bool {
    let is_broken = |after: &[u8]| match after {
        [high, low, ..] => !(high.is_ascii_hexdigit() && low.is_ascii_hexdigit()),
        _ => true,
    };
    let mut percents = path.iter().enumerate().filter(|&(_, &byte)| byte == b'%');
    percents.any(|(at, _)| is_broken(&path[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(path: &str) -> String {
        let path = canonical(path).expect("a valid path").into_owned();
        String::from_utf8(path).expect("UTF-8")
    }

    #[test]
    fn dot_segment_is_rejected() {
        for path in [
            "/a/../b",
            "/a/./b",
            "/..",
            "/a/.",
            "/a/%2e%2E/b",
            "/%2e",
            "/a%2F..",
            "/..%2Fb",
            "./a",
        ] {
            assert_eq!(canonical(path), Err(InvalidKey::DotSegment), "{path}");
        }
        for path in ["/...", "/.hidden", "/a..b/c."] {
            assert_eq!(decoded(path), path);
        }
    }

    #[test]
    fn path_is_decoded_once() {
        for (path, expected) in [
            ("", "/"),
            ("/", "/"),
            ("//", "/"),
            // A layer that appends slashes makes `/*/` of it.
            ("*", "/*"),
            ("/%41", "/A"),
            ("/A", "/A"),
            ("/a", "/a"),
            ("/a%40b", "/a@b"),
            ("/ORD%3A1", "/ORD:1"),
            ("/a%2fb", "/a/b"),
            ("/a/", "/a"),
            ("/a%2F/", "/a"),
            ("/a//b", "/a/b"),
            ("//a", "/a"),
            ("///a%2F/b//", "/a/b"),
            ("/é", "/é"),
            ("/%c3%A9", "/é"),
            ("/a%25zz", "/a%zz"),
            ("/a%2525", "/a%25"),
            ("/a+b", "/a+b"),
        ] {
            assert_eq!(decoded(path), expected, "{path}");
        }
        assert_eq!(canonical("/%FF").as_deref(), Ok(&b"/\xff"[..]));
    }

    #[test]
    fn broken_escape_is_rejected() {
        for path in ["/%", "/%4", "/%zz", "/a%4/b", "/%+1", "/%é"] {
            let broken = InvalidKey::Undecodable("path".into());
            assert_eq!(canonical(path), Err(broken), "{path}");
        }
    }

    #[test]
    fn plain_path_is_not_copied() {
        for path in ["/orders/42", "/orders/42/"] {
            assert!(matches!(canonical(path), Ok(Cow::Borrowed(b"/orders/42"))));
        }
    }
}
