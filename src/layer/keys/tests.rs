use http::request::Parts;
use http::{HeaderName, Request};

use super::*;
use crate::{InvalidKey, LockKey, LockKeys};

fn parts(request: http::request::Builder) -> Parts {
    request.body(()).expect("a valid request").into_parts().0
}

fn one(name: &str, value: &str) -> Result<Option<LockKeys>, InvalidKey> {
    Ok(Some(LockKey::from_parts([name, value]).into()))
}

#[test]
fn by_path_normalises_and_ignores_the_query() {
    let key = |uri| ByPath.extract(&parts(Request::get(uri)));
    assert_eq!(key("/a%42?x=1"), key("/aB"));
    assert_eq!(key("http://host/a"), key("/a?b"));
    assert_ne!(key("/a%2Fb"), key("/a/b"));
    assert_eq!(
        key("/%zz"),
        Err(InvalidKey::Undecodable {
            what: "path".into()
        })
    );
}

#[cfg(feature = "axum")]
#[test]
fn by_path_uses_the_path_before_nesting() {
    let mut request = parts(Request::get("/42"));
    let original = "/orders/42".parse().expect("a valid path");
    request
        .extensions
        .insert(axum::extract::OriginalUri(original));
    assert_eq!(
        ByPath.extract(&request),
        Ok(Some(LockKey::from_parts(["/orders/42"]).into()))
    );
}

#[test]
fn by_header_wants_the_header_exactly_once() {
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
    let bytes = extract(Request::get("/").header("x-id", &b"\xff"[..]));
    assert_eq!(
        bytes,
        Ok(Some(LockKey::from_parts([b"x-id", &b"\xff"[..]]).into()))
    );
}

#[test]
fn by_query_decodes_names_and_values_as_a_form() {
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
}

#[test]
fn an_empty_value_makes_a_key_that_nobody_can_lock() {
    let keys = ByQuery::new("id".into())
        .extract(&parts(Request::get("/?id=")))
        .expect("the parameter is there")
        .expect("it makes a key");
    assert_eq!(keys.validate(), Err(InvalidKey::EmptyPart { index: 1 }));
}

#[test]
fn by_extension_asks_the_target() {
    let mut request = parts(Request::get("/"));
    let by_key = ByExtension::<LockKey>::new();
    assert!(matches!(
        by_key.extract(&request),
        Err(InvalidKey::Missing { .. })
    ));
    request.extensions.insert(LockKey::new("tenant:7"));
    assert_eq!(by_key.extract(&request), one("tenant", "7"));
}

#[test]
fn closures_are_extractors() {
    let by_method = |request: &Parts| Ok(Some(request.method.as_str().into()));
    let keys = by_method.extract(&parts(Request::get("/")));
    assert_eq!(keys, Ok(Some(LockKeys::from("GET"))));
}
