//! Keys of single values of a request.

use http::request::{Builder, Parts};
use http::{HeaderName, Request};

use super::{ByExtension, ByHeader, ByQuery, KeyExtractor};
use crate::{InvalidKey, LockKey, LockKeys};

fn parts(request: Builder) -> Parts {
    request.body(()).expect("a valid request").into_parts().0
}

fn one(name: &str, value: &str) -> Result<Option<LockKeys>, InvalidKey> {
    Ok(Some(LockKey::from_parts([name, value]).into()))
}

#[test]
fn extension_supplies_its_keys() {
    let mut request = parts(Request::get("/"));
    let by_key = ByExtension::<LockKey>::new();
    assert!(matches!(
        by_key.extract(&request),
        Err(InvalidKey::Setup { .. })
    ));
    request.extensions.insert(LockKey::new("tenant:7"));
    assert_eq!(by_key.extract(&request), one("tenant", "7"));
}

#[test]
fn header_is_required_exactly_once() {
    let extract = |request| ByHeader::new(HeaderName::from_static("x-id")).extract(&parts(request));
    let what = || "header `x-id`".into();
    assert_eq!(
        extract(Request::get("/").header("X-Id", "7")),
        one("x-id", "7")
    );
    assert_eq!(
        extract(Request::get("/")),
        Err(InvalidKey::Missing { what: what() })
    );
    assert_eq!(
        extract(Request::get("/").header("x-id", "7").header("x-id", "8")),
        Err(InvalidKey::Ambiguous { what: what() })
    );
    assert_eq!(
        extract(Request::get("/").header("x-id", "")),
        Err(InvalidKey::EmptyValue { what: what() })
    );
    let bytes = extract(Request::get("/").header("x-id", &b"\xff"[..]));
    assert_eq!(
        bytes,
        Ok(Some(LockKey::from_parts([b"x-id", &b"\xff"[..]]).into()))
    );
}

#[test]
fn query_parameter_is_decoded_as_form() {
    let extract = |uri: &str| ByQuery::new("id".into()).extract(&parts(Request::get(uri)));
    let what = || "query parameter `id`".into();
    assert_eq!(extract("/?a=b&id=x+y%2B%41"), one("id", "x y+A"));
    assert_eq!(extract("/?%69d=7"), one("id", "7"));
    assert_eq!(extract("/?id=a=b"), one("id", "a=b"));
    assert_eq!(extract("/?id=50%"), one("id", "50%"));
    assert_eq!(
        extract("/?ID=7&idd=1"),
        Err(InvalidKey::Missing { what: what() })
    );
    assert_eq!(extract("/"), Err(InvalidKey::Missing { what: what() }));
    assert_eq!(
        extract("/?id=7&i%64=7"),
        Err(InvalidKey::Ambiguous { what: what() })
    );
    assert_eq!(
        extract("/?id=%FF"),
        Err(InvalidKey::Undecodable { what: what() })
    );
    assert_eq!(
        extract("/?id="),
        Err(InvalidKey::EmptyValue { what: what() })
    );
}
