//! The wait that a client prefers: `Prefer: wait=N`, RFC 7240.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

const PREFER: HeaderName = HeaderName::from_static("prefer");
const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The wait of a request whose client prefers one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::layer) struct PreferredWait {
    pub(in crate::layer) wait: Duration,
    /// The whole seconds of it, unless the limit of the layer is shorter than one.
    pub(in crate::layer) applied: Option<u32>,
}

impl PreferredWait {
    /// Reads the preference, and bounds it by the wait of the layer. A malformed preference is ignored, as
    /// RFC 7240 §2 requires.
    pub(in crate::layer) fn read(headers: &HeaderMap, limit: Duration) -> Option<Self> {
        let preferred = preferred(headers)?;
        let wait = Duration::from_secs(preferred.into()).min(limit);
        let seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX);
        let applied = (seconds > 0 || preferred == 0).then_some(seconds);
        Some(Self { wait, applied })
    }
}

/// Adds `Preference-Applied` to the response.
pub(in crate::layer) fn confirm_wait(headers: &mut HeaderMap, applied: Option<u32>) {
    if let Some(seconds) = applied
        && let Ok(value) = HeaderValue::try_from(format!("wait={seconds}"))
    {
        headers.append(PREFERENCE_APPLIED, value);
    }
}

/// Returns the seconds of the first preference `wait`: of several, RFC 7240 §2 lets the first apply.
fn preferred(headers: &HeaderMap) -> Option<u32> {
    let values = headers.get_all(PREFER).iter();
    let mut preferences = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| split(value, ','));
    let value = preferences.find_map(|preference| {
        // Parameters follow a semicolon.
        let preference = split(preference, ';').next()?;
        let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
        (name.trim().eq_ignore_ascii_case("wait")).then(|| value.trim())
    })?;
    let unquoted = value.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    let digits = unquoted.unwrap_or(value);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // Too large for the type is longer than any limit.
    is_number.then(|| digits.parse().unwrap_or(u32::MAX))
}

/// Splits at `separator`, except in quoted strings.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |char| {
        match char {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => return char == separator && !quoted,
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("prefer", value.parse().expect("a header value"));
        }
        headers
    }

    #[test]
    fn first_wait_preference_applies() {
        for (values, seconds) in [
            (&["wait=3"][..], Some(3)),
            (&["WAIT = \"3\""], Some(3)),
            (&["respond-async, wait=3;strict"], Some(3)),
            (&["respond-async", "wait=3", "wait=4"], Some(3)),
            (&["note=\"a, wait=9; \\\", wait=8\", wait=3"], Some(3)),
            // A backslash escapes only inside quotes.
            (&["note=\\, wait=3"], Some(3)),
            (&["wait=0"], Some(0)),
            (&["wait=99999999999999999999"], Some(u32::MAX)),
            (&["wait=-3, wait=4"], None),
            (&["wait=1.5"], None),
            (&["wait"], None),
            (&["waiting=3"], None),
            (&[], None),
        ] {
            assert_eq!(preferred(&headers(values)), seconds, "{values:?}");
        }
    }

    #[test]
    fn preferred_wait_is_bounded_by_limit() {
        for (value, limit, wait, applied) in [
            ("wait=2", 5_000, 2_000, Some(2)),
            ("wait=9", 5_000, 5_000, Some(5)),
            ("wait=9", 1_500, 1_500, Some(1)),
            ("wait=9", 500, 500, None),
            ("wait=0", 500, 0, Some(0)),
        ] {
            let read = PreferredWait::read(&headers(&[value]), Duration::from_millis(limit));
            let wait = Duration::from_millis(wait);
            assert_eq!(read, Some(PreferredWait { wait, applied }), "{value}");
        }
    }
}
