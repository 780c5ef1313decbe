//! Every row of the table in `guide::http`, by `curl` against a server, over HTTP/1.1 and HTTP/2.

mod curl;
mod routes;

use futures_util::future::join_all;
use http::Request;
use http_body_util::BodyExt;
use serde_json::Value;

use self::curl::{Received, Version, send, send_bytes};
use self::routes::BusyServer;
use crate::served::{Stream, WINDOW, over_http2};

/// A rejection, as the table describes it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Row {
    path: &'static str,
    status: u16,
    retry_after: bool,
    problem: &'static str,
}

const fn row(path: &'static str, status: u16, retry_after: bool, problem: &'static str) -> Row {
    Row {
        path,
        status,
        retry_after,
        problem,
    }
}

const LATE: &str = "/late";

const ROWS: [Row; 23] = [
    row("/busy", 409, true, "resource-busy"),
    row("/busy-at-once", 409, true, "resource-busy"),
    row("/busy-423", 423, true, "resource-busy"),
    row("/permits", 429, true, "permits-exhausted"),
    row("/permits-409", 409, true, "permits-exhausted"),
    row("/full-key", 429, true, "too-many-waiters"),
    row("/full", 503, true, "lock-overload"),
    row("/down", 503, true, "lock-unavailable"),
    row("/refused", 503, false, "lock-unavailable"),
    row("/stopped", 503, true, "shutting-down"),
    row("/lost", 500, false, "lock-lost"),
    row("/no-key", 400, false, "lock-key-invalid"),
    row("/nested/not/there", 404, false, "no-route"),
    row("/wrong", 500, false, "lock-misconfigured"),
    row("/large", 413, false, "about:blank"),
    row(LATE, 408, false, "about:blank"),
    row("/foreign", 500, false, "lock-key-conflict"),
    row("/deep", 500, false, "lock-reentrancy"),
    row("/upgrade", 500, false, "lock-upgrade"),
    row("/unsupported", 500, false, "lock-option-invalid"),
    row("/handler-busy", 409, false, "lock-failed-in-handler"),
    row("/handler-option", 500, false, "lock-failed-in-handler"),
    row("/handler-key", 400, false, "lock-failed-in-handler"),
];

/// A body that is not framed as announced, which curl does not send.
const BROKEN: Row = row("/broken", 400, false, "about:blank");

impl Row {
    /// Returns the options of curl.
    fn request(&self) -> Vec<String> {
        let options = match self.path {
            "/large" => vec!["--data", "12345"],
            LATE => vec!["--limit-rate", "1000", "--header", "expect:"],
            _ => vec!["--request", "POST"],
        };
        let mut options: Vec<_> = options.into_iter().map(ToOwned::to_owned).collect();
        if self.path == LATE {
            // In 5 s, at that rate.
            options.extend(["--data".to_owned(), "x".repeat(5_000)]);
        }
        options
    }

    /// Curl 7.88 drops the response to an upload that the server ends early over HTTP/2.
    fn is_for_curl(&self, version: Version) -> bool {
        !self.has_body() || version == Version::Http1
    }

    fn has_body(&self) -> bool {
        self.problem == "about:blank"
    }

    fn check_head(&self, received: &Received) {
        assert_eq!(received.status, self.status, "{self:?}: {received:?}");
        assert_eq!(received.header("cache-control"), Some("no-store"));
        let seconds = received.header("retry-after");
        assert_eq!(
            seconds.is_some(),
            self.retry_after,
            "{self:?}: {received:?}"
        );
        if let Some(seconds) = seconds {
            let seconds: u64 = seconds.parse().expect("whole seconds");
            // The holder has held for some seconds, longer on a busy machine, and waiters are ahead.
            assert!((1..=60).contains(&seconds), "{self:?}: {seconds}");
        }
    }

    /// Checks the members that RFC 9457 §3.1 defines, and those of this crate.
    fn check_problem(&self, received: &Received) {
        self.check_head(received);
        let media_type = received.header("content-type");
        assert_eq!(media_type, Some("application/problem+json"));
        let Value::Object(problem) = serde_json::from_str(&received.body).unwrap() else {
            panic!("no object: {}", received.body);
        };
        let text = |member: &str| problem[member].as_str().unwrap();
        assert_eq!(problem["status"], self.status);
        assert!(!text("title").is_empty() && !text("detail").is_empty());
        match self.problem {
            // The title is then the phrase of the status, §4.2.1.
            "about:blank" => {
                assert_eq!(text("type"), "about:blank");
                let phrase = match self.status {
                    400 => "Bad Request",
                    413 => "Content Too Large",
                    408 => "Request Timeout",
                    other => unreachable!("{other}"),
                };
                assert_eq!(text("title"), phrase);
            }
            name => {
                let (page, fragment) = text("type").split_once('#').unwrap();
                let page: http::Uri = page.parse().expect("an absolute URI");
                assert_eq!(page.scheme_str(), Some("https"));
                assert_eq!(fragment, name);
                // 423 is an option of 409, and 409 of 429. An error of a handler has the status of its kind.
                let default = match name {
                    "permits-exhausted" => "429",
                    "resource-busy" | "lock-failed-in-handler" => "409",
                    _ => &self.status.to_string(),
                };
                let section = format!("//! # {name}\n//!\n//! Status {default}");
                let guide = include_str!("../../../src/guide/problems.rs");
                assert!(guide.contains(&section), "{section}");
            }
        }
        let retry_after = problem.get("retry_after_ms").map(|it| it.as_u64().unwrap());
        let seconds = retry_after.map(|millis| millis.div_ceil(1000).max(1).to_string());
        assert_eq!(received.header("retry-after"), seconds.as_deref());
        assert_eq!(problem.contains_key("waited_ms"), self.retry_after);
        let own = [
            "type",
            "title",
            "status",
            "detail",
            "waited_ms",
            "retry_after_ms",
        ];
        let foreign: Vec<_> = problem
            .keys()
            .filter(|key| !own.contains(&&***key))
            .collect();
        assert!(foreign.is_empty(), "{foreign:?}");
    }

    fn check_text(&self, received: &Received) {
        self.check_head(received);
        let media_type = received.header("content-type");
        assert_eq!(media_type, Some("text/plain; charset=utf-8"));
        let (title, detail) = received.body.split_once(": ").unwrap();
        assert!(!title.is_empty() && detail.ends_with('\n'), "{received:?}");
    }

    /// Sends the request in each form.
    async fn check(&self, version: Version, server: &BusyServer) {
        let url = server.url(self.path);
        let mut options = self.request();
        self.check_problem(&send(version, &url, &options).await);
        options.extend(["--header", "accept: text/plain"].map(ToOwned::to_owned));
        self.check_text(&send(version, &url, &options).await);
        if !self.has_body() {
            let head = send(version, &url, &["--head"]).await;
            self.check_head(&head);
            assert_eq!(head.body, "");
            let length = head.header("content-length");
            // As that of the response to another method.
            assert!(length.is_some_and(|length| length != "0"), "{head:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_row_is_as_table_says() {
    let server = BusyServer::start().await;
    for version in Version::ALL {
        // A few clients at a time: each is a process.
        for rows in ROWS.chunks(4) {
            let rows = rows.iter().filter(|row| row.is_for_curl(version));
            join_all(rows.map(|row| row.check(version, &server))).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_in_body_is_incomplete_response() {
    let server = BusyServer::start().await;
    for version in Version::ALL {
        let received = send(version, &server.url("/lost-in-body"), &["--no-buffer"]).await;
        assert_eq!(received.status, 200);
        assert_eq!(received.body, "part");
        assert!(!received.is_complete, "{version:?}");
    }
}

/// Over HTTP/2, such a body ends the stream, and with it the response.
#[tokio::test]
async fn broken_body_receives_response() {
    let server = BusyServer::start().await;
    let sent = |accept: &str, body: &str| {
        let path = BROKEN.path;
        let head = format!("POST {path} HTTP/1.1\r\nhost: a\r\naccept: {accept}\r\n");
        format!("{head}transfer-encoding: chunked\r\n\r\n{body}")
    };
    for body in ["zz\r\n", "2\r\n123\r\n", "fffffffffffffffff\r\n"] {
        let problem = sent("*/*", body);
        BROKEN.check_problem(&send_bytes(server.address(), &problem).await);
        let text = sent("text/plain", body);
        BROKEN.check_text(&send_bytes(server.address(), &text).await);
    }
}

#[tokio::test]
async fn rejected_body_over_http2_receives_response() {
    let server = BusyServer::start().await;
    for row in ROWS.iter().filter(|row| row.has_body()) {
        let (mut client, _socket) = over_http2(server.address(), WINDOW).await;
        let (body, frames) = Stream::new();
        frames.data("12");
        let request = Request::post(server.url(row.path)).body(body).unwrap();
        let response = client.send_request(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        row.check_problem(&Received {
            status: head.status.as_u16(),
            headers: head.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
            is_complete: true,
        });
        drop(frames);
    }
}

/// Returns the rows of the guide: the cell of the status, `Retry-After` and the problem type.
fn documented() -> Vec<(String, bool, String)> {
    let guide = include_str!("../../../src/guide/http.rs");
    let table = guide.split_once("# What a client sees").unwrap().1;
    let table = table.split_once("//!\n//! A wait that").unwrap().0;
    let rows = table.lines().filter_map(|line| line.strip_prefix("//! | "));
    // The header and the line below it.
    let rows = rows
        .skip(1)
        .filter(|row| !row.starts_with("the lock was lost while"));
    rows.map(|row| {
        let cells: Vec<_> = row
            .split(" | ")
            .map(|cell| cell.trim_end_matches('|').trim())
            .collect();
        let [_, status, retry_after, problem] = cells[..] else {
            panic!("{row}")
        };
        (
            status.to_owned(),
            retry_after == "yes",
            problem.trim_matches('`').to_owned(),
        )
    })
    .collect()
}

#[test]
fn table_of_guide_has_rows_tested_here() {
    let documented = documented();
    assert!(documented.len() > 10, "{documented:?}");
    let rows = ROWS.iter().chain([&BROKEN]);
    let tested: Vec<_> = rows
        .map(|row| (row.status, row.retry_after, row.problem))
        .collect();
    let is_same = |(status, retry_after, problem): &(u16, bool, &str),
                   (cell, is_temporary, name): &(String, bool, String)| {
        cell.contains(&status.to_string()) && retry_after == is_temporary && problem == name
    };
    for row in &tested {
        assert!(
            documented.iter().any(|it| is_same(row, it)),
            "not in the guide: {row:?}"
        );
    }
    for it in &documented {
        assert!(
            tested.iter().any(|row| is_same(row, it)),
            "not tested: {it:?}"
        );
    }
}
