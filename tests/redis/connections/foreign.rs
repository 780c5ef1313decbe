//! Servers that speak a part of the protocol: the error of the connect says what is missing.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tower_lock::{ConnectError, RedisBackend};

use crate::support::errors::chain;

/// Returns the reply to a command, or `None` to close the connection.
type Replies = fn(&str) -> Option<&'static str>;

/// Starts a server on a free port, and returns its URL.
async fn serve(replies: Replies) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    drop(tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            drop(tokio::spawn(converse(client, replies)));
        }
    }));
    url
}

async fn converse(client: TcpStream, replies: Replies) -> std::io::Result<()> {
    let mut client = BufReader::new(client);
    loop {
        let mut line = String::new();
        client.read_line(&mut line).await?;
        let Some(words) = line.strip_prefix('*') else {
            return Ok(());
        };
        let words = words.trim_end().parse().expect("a number of words");
        let mut name = None;
        for _ in 0..words {
            line.clear();
            client.read_line(&mut line).await?;
            let mut word = vec![0; line[1..].trim_end().parse::<usize>().unwrap() + 2];
            client.read_exact(&mut word).await?;
            name.get_or_insert(word);
        }
        let name = String::from_utf8(name.unwrap_or_default()).unwrap();
        let Some(reply) = replies(name.trim_end()) else {
            return Ok(());
        };
        client.write_all(reply.as_bytes()).await?;
    }
}

/// Returns the text of the error of a connect.
async fn refused(url: &str) -> String {
    let error = RedisBackend::builder(url).connect().await.unwrap_err();
    let text = chain(&error);
    assert!(matches!(error, ConnectError::Refused { .. }), "{text}");
    text
}

#[tokio::test]
async fn unexpected_reply_is_not_unreachable() {
    for replies in [
        // Replies that no command of this crate has.
        |_: &str| Some("%0\r\n"),
        // A subscription in RESP2 on a connection in RESP3.
        |name: &str| {
            Some(match name {
                "SUBSCRIBE" => "*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n",
                "EVALSHA" => ":1\r\n",
                _ => "+OK\r\n",
            })
        },
    ] as [Replies; 2]
    {
        let text = refused(&serve(replies).await).await;
        assert!(text.contains("unexpected reply from the server"), "{text}");
        for wrong in ["unreachable", "did not reply", "no reply"] {
            assert!(!text.contains(wrong), "{text}");
        }
    }
}

#[tokio::test]
async fn server_without_resp3_names_setting() {
    let replies = |_: &str| Some("-NOPROTO unsupported protocol version\r\n");
    let text = refused(&serve(replies).await).await;
    assert!(text.contains("`?protocol=2`"), "{text}");
    assert!(text.contains("unsupported protocol version"), "{text}");
}

/// A proxy closes the connection after a command that it does not know. Redis does so in protected mode, and its text is lost
/// with the connection.
#[tokio::test]
async fn closed_handshake_names_its_commands() {
    let url = serve(|_| None).await;
    for url in [&url, &format!("{url}?protocol=2")] {
        let error = RedisBackend::builder(url).connect().await.unwrap_err();
        let text = chain(&error);
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{text}");
        for expected in ["closed", "`HELLO`", "`CLIENT SETINFO`", "protected mode"] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
    }
}

#[tokio::test]
async fn script_error_is_quoted_whole() {
    let url = serve(|name| {
        Some(match name {
            "EVALSHA" | "EVAL" => {
                "-ERR Unknown command called from script script: 5e86, on @user_script:1.\r\n"
            }
            _ => "+OK\r\n",
        })
    });
    let text = refused(&format!("{}?protocol=2", url.await)).await;
    let quoted = "Unknown command called from script script: 5e86, on @user_script:1.";
    assert!(text.contains(quoted), "{text}");
    assert!(text.contains("`PUBSUB`"), "{text}");
}
