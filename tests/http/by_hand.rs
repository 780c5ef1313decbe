//! Views and rejections that a program's tests create.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::IntoResponse;
use http::{Request, Response, StatusCode};
use tower_lock::{Error, ErrorKind, Held, LockKey, LockRejection};

use crate::served::assert_waits;

async fn update(request: Request<String>) -> Result<Response<String>, Infallible> {
    let held: &Held = request.extensions().get().unwrap();
    assert!(held.is_held() && held.remaining() > Duration::from_secs(3_600));
    Ok(Response::new(held.fencing_token().to_string()))
}

#[tokio::test]
async fn held_by_hand_is_held_without_end() {
    let held = Held::for_tests("order:42", 7);
    assert_eq!(held.key(), &LockKey::new("order:42"));
    assert_eq!(held.hold_count(), 1);
    let mut lost = Box::pin(held.lost());
    assert_waits(&mut lost).await;
    let request = Request::put("/orders/42").extension(held);
    let response = update(request.body(String::new()).unwrap()).await.unwrap();
    assert_eq!(response.into_body(), "7");
    let two = Held::for_tests(["a", "b"], 7);
    assert_eq!(two.keys().len(), 2);
}

#[test]
fn rejection_by_hand_has_response_of_kind() {
    let error = || Error::for_tests(ErrorKind::Busy);
    let rejection = LockRejection::from(error());
    assert_eq!(rejection.kind(), ErrorKind::Busy);
    assert_eq!(rejection.status(), StatusCode::CONFLICT);
    let response = error().into_response();
    assert_eq!(response.status(), StatusCode::CONFLICT);
}
