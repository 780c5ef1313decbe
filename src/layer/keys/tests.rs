//! Keys of single values of a request.

use http::header::HOST;
use http::request::{Builder, Parts};
use http::{HeaderName, Request};

use super::{ByFn, ByValue, KeyExtractor, Place, of_extension};
use crate::{InvalidKey, LockKey, LockKeys};

fn parts(request: Builder) -> Parts {
    request.body(()).expect("a valid request").into_parts().0
}

fn by(place: Place) -> ByValue {
    ByValue::of(place)
}

fn one(name: &str, value: &str) -> Result<Option<LockKeys>, InvalidKey> {
    Ok(Some(LockKey::from_parts([name, value]).into()))
}

#[test]
fn extension_supplies_its_keys() {
    let mut request = parts(Request::get("/"));
    let by_key = ByFn::new(of_extension::<LockKey>);
    assert!(matches!(
        by_key.extract(&request),
        Err(InvalidKey::Setup(_))
    ));
    request.extensions.insert(LockKey::new("tenant:7"));
    assert_eq!(by_key.extract(&request), one("tenant", "7"));
}

#[test]
fn header_is_required_exactly_once() {
    let extract =
        |request| by(Place::Header(HeaderName::from_static("x-id"))).extract(&parts(request));
    let what = || "header `x-id`".into();
    assert_eq!(
        extract(Request::get("/").header("X-Id", "7")),
        one("x-id", "7")
    );
    assert_eq!(extract(Request::get("/")), Err(InvalidKey::Missing(what())));
    assert_eq!(
        extract(Request::get("/").header("x-id", "7").header("x-id", "8")),
        Err(InvalidKey::Ambiguous(what()))
    );
    assert_eq!(
        extract(Request::get("/").header("x-id", "")),
        Err(InvalidKey::EmptyValue(what()))
    );
    let bytes = extract(Request::get("/").header("x-id", &b"\xff"[..]));
    assert_eq!(
        bytes,
        Ok(Some(LockKey::from_parts([b"x-id", &b"\xff"[..]]).into()))
    );
}

#[test]
fn query_parameter_is_decoded_as_form() {
    let extract = |uri: &str| by(Place::Query("id".into())).extract(&parts(Request::get(uri)));
    let what = || "query parameter `id`".into();
    assert_eq!(extract("/?a=b&id=x+y%2B%41"), one("id", "x y+A"));
    assert_eq!(extract("/?%69d=7"), one("id", "7"));
    assert_eq!(extract("/?id=a=b"), one("id", "a=b"));
    assert_eq!(extract("/?id=50%"), one("id", "50%"));
    assert_eq!(extract("/?ID=7&idd=1"), Err(InvalidKey::Missing(what())));
    assert_eq!(extract("/"), Err(InvalidKey::Missing(what())));
    assert_eq!(extract("/?id=7&i%64=7"), Err(InvalidKey::Ambiguous(what())));
    assert_eq!(extract("/?id=%FF"), Err(InvalidKey::Undecodable(what())));
    assert_eq!(extract("/?id="), Err(InvalidKey::EmptyValue(what())));
}

#[test]
fn host_is_one_key_in_each_form_of_request() {
    let extract = |request| by(Place::Header(HOST)).extract(&parts(request));
    let form = |target: &str, host: Option<&str>| {
        let request = Request::get(target);
        match host {
            Some(host) => extract(request.header("host", host)),
            None => extract(request),
        }
    };
    for (target, host) in [
        ("/", Some("example.org")),
        ("/", Some("EXAMPLE.org.:443")),
        ("/", Some("example.org:80")),
        ("/", Some("example.org:")),
        ("https://example.org/", None),
        ("http://Example.org:080/", None),
        ("http://user:secret@example.org/", None),
        ("http://example.org/", Some("example.org:80")),
        ("example.org:443", Some("example.org")),
    ] {
        let key = form(target, host);
        assert_eq!(key, one("host", "example.org"), "{target} {host:?}");
    }
    assert_eq!(form("/", Some("[::A]:8080")), one("host", "[::a]:8080"));
    assert_eq!(form("http://[::a]:8080", None), one("host", "[::a]:8080"));
    assert_eq!(form("/", Some("[0:0::a]")), one("host", "[::a]"));
    assert_eq!(form("http://a:81", Some("A:81")), one("host", "a:81"));
}

#[test]
fn host_missing_or_doubtful_is_rejected() {
    let extract = |request| by(Place::Header(HOST)).extract(&parts(request));
    let what = || "host".into();
    let get = || Request::get("/");
    assert_eq!(extract(get()), Err(InvalidKey::Missing(what())));
    let ambiguous = Err(InvalidKey::Ambiguous(what()));
    let twice = get().header("host", "a").header("host", "a");
    assert_eq!(extract(twice), ambiguous);
    for (target, host) in [
        ("http://a", "b"),
        ("http://a:81", "a"),
        ("http://a", "a:81"),
    ] {
        let request = Request::get(target).header("host", host);
        assert_eq!(extract(request), ambiguous, "{target} {host}");
    }
    let in_target = Request::get("http://a").header("host", "a");
    assert_eq!(extract(in_target.header("host", "a")), ambiguous);
    let malformed = Err(InvalidKey::Malformed(what()));
    for host in [
        "a/b", "a b", "é", "::1", "[::1", "[::1]a", "a:+81", "a:65536", "a:8~",
    ] {
        assert_eq!(extract(get().header("host", host)), malformed, "{host}");
    }
    // The `http` crate accepts these in a target.
    for target in ["http://a[::1]:80", "http://[::1]:80=", "http://a:8~"] {
        assert_eq!(extract(Request::get(target)), malformed, "{target}");
    }
    for host in ["", ":", ":81", "."] {
        let empty = Err(InvalidKey::EmptyValue(what()));
        assert_eq!(extract(get().header("host", host)), empty, "{host}");
    }
}
