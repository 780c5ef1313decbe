//! The host of a request, in each form of the request.

use std::net::Ipv6Addr;

use http::header::{HOST, HeaderValue};
use http::request::Parts;
use http::uri::Authority;

use crate::InvalidKey;

const WHAT: &str = "host";

/// Returns the host and its port, in one spelling.
///
/// HTTP/2 and the absolute form of HTTP/1.1 have it in the target, and the other forms in a header.
pub(super) fn of(request: &Parts) -> Result<String, InvalidKey> {
    let target = request.uri.authority().map(Authority::as_str);
    let mut headers = request.headers.get_all(HOST).iter();
    let header = headers.next().map(text).transpose()?;
    match (
        target.map(canonical).transpose()?,
        header.map(canonical).transpose()?,
    ) {
        _ if headers.next().is_some() => Err(InvalidKey::Ambiguous(WHAT.into())),
        // Another program could read the other one.
        (Some(target), Some(header)) if target != header => Err(InvalidKey::Ambiguous(WHAT.into())),
        (Some(host), _) | (None, Some(host)) => Ok(host),
        (None, None) => Err(InvalidKey::Missing(WHAT.into())),
    }
}

fn malformed() -> InvalidKey {
    InvalidKey::Malformed(WHAT.into())
}

fn text(header: &HeaderValue) -> Result<&str, InvalidKey> {
    let text = header.to_str().map_err(|_| malformed())?;
    // An authority allows these characters, and the `http` crate has checked that of the target.
    match text.is_empty() || text.parse::<Authority>().is_ok() {
        true => Ok(text),
        false => Err(malformed()),
    }
}

/// Returns an authority without what differs between the spellings of one host.
///
/// The scheme is unknown in most forms of a request, so the default ports of both schemes are removed. The `http` crate
/// accepts authorities whose host and port are none.
fn canonical(authority: &str) -> Result<String, InvalidKey> {
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (host, ""),
    };
    let host = match host.strip_prefix('[').map(|ip| ip.strip_suffix(']')) {
        Some(ip) => {
            let ip = ip.and_then(|ip| ip.parse::<Ipv6Addr>().ok());
            format!("[{}]", ip.ok_or_else(malformed)?)
        }
        None if host.contains(['[', ']', ':']) => return Err(malformed()),
        None => host.trim_end_matches('.').to_ascii_lowercase(),
    };
    if host.is_empty() {
        return Err(InvalidKey::EmptyValue(WHAT.into()));
    }
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse::<u16>() {
        _ if port.is_empty() => Ok(host),
        Ok(80 | 443) if is_number => Ok(host),
        Ok(port) if is_number => Ok(format!("{host}:{port}")),
        _ => Err(malformed()),
    }
}
