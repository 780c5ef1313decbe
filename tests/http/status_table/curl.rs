//! `curl` as the client, and bytes that curl does not send.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::process::{Output, Stdio};

use http::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

/// The protocol that the client must use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Version {
    Http1,
    Http2,
}

impl Version {
    pub(super) const ALL: [Self; 2] = [Self::Http1, Self::Http2];

    fn option(self) -> &'static str {
        match self {
            Self::Http1 => "--http1.1",
            Self::Http2 => "--http2-prior-knowledge",
        }
    }

    /// Returns the start of the status line, as curl prints it.
    fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }
}

/// What the client received.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
    /// Whether the response was complete.
    pub(super) is_complete: bool,
}

impl Received {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// Sends one request. The options are those of curl.
pub(super) async fn send<A: AsRef<OsStr>>(version: Version, url: &str, options: &[A]) -> Received {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--include", "--max-time", "60"])
        .arg(version.option())
        .args(options)
        .arg(url)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("`curl` is on the PATH: `.ci/install curl` installs it");
    parse(version, &output)
}

/// Sends these bytes, and reads until the server closes the connection.
pub(super) async fn send_bytes(address: SocketAddr, request: &str) -> Received {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut stdout = Vec::new();
    connection.read_to_end(&mut stdout).await.unwrap();
    let (status, stderr) = Default::default();
    let output = Output {
        status,
        stdout,
        stderr,
    };
    parse(Version::Http1, &output)
}

fn parse(version: Version, output: &Output) -> Received {
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let (mut head, mut body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no head: {text:?}, {errors}"));
    if head.contains(" 100 ") {
        (head, body) = body.split_once("\r\n\r\n").unwrap();
    }
    let mut lines = head.lines();
    let mut status = lines.next().unwrap().split(' ');
    assert_eq!(status.next(), Some(version.name()), "{head}");
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        let name: http::HeaderName = name.parse().unwrap();
        headers.append(name, value.parse().unwrap());
    }
    Received {
        status: status.next().unwrap().parse().unwrap(),
        headers,
        body: body.to_owned(),
        is_complete: output.status.success(),
    }
}
