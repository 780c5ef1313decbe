//! The span of one call of a script.

use redis::{RedisError, Value};

use super::request::Request;

/// From the command to its reply. A call can serve many requests, so it has no parent.
///
/// If dropped before [`end`](Self::end), the caller no longer waits for the reply.
pub(crate) struct CallSpan {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl CallSpan {
    #[inline]
    pub(crate) fn begin(request: &Request<'_>, address: &str) -> Self {
        #[cfg(feature = "tracing")]
        {
            let is_enabled = tracing::enabled!(target: "tower_lock", tracing::Level::TRACE);
            let called = request.called.filter(|_| is_enabled);
            let span = called.map(|called| {
                use tracing::field::Empty;

                let (host, port) = server(address);
                tracing::trace_span!(
                    target: "tower_lock",
                    parent: None,
                    "EVALSHA",
                    otel.kind = "client",
                    db.system.name = "redis",
                    db.operation.name = operation(request.command),
                    db.stored_procedure.name = called.script,
                    // As the conventions of OpenTelemetry say, a single operation is no batch.
                    db.operation.batch.size = (called.locks > 1).then_some(called.locks),
                    server.address = host,
                    server.port = port,
                    error.type = Empty,
                    db.response.status_code = Empty,
                )
            });
            Self {
                span: span.unwrap_or_else(tracing::Span::none),
            }
        }
        #[cfg(not(feature = "tracing"))]
        {
            let _unused_without_features =
                (request.called.map(|it| (it.script, it.locks)), address);
            Self {}
        }
    }

    /// Ends the span with the reply, or with `None` if none arrived in time.
    #[inline]
    pub(crate) fn end(self, reply: Option<&Result<Value, RedisError>>) {
        #[cfg(feature = "tracing")]
        if !self.span.is_disabled() {
            match reply {
                Some(Ok(Value::ServerError(rejection))) => {
                    self.span.record("error.type", rejection.code());
                    self.span
                        .record("db.response.status_code", rejection.code());
                }
                Some(Ok(_)) => {}
                Some(Err(_)) => {
                    self.span.record("error.type", "connection_lost");
                }
                None => {
                    self.span.record("error.type", "timeout");
                }
            }
        }
        #[cfg(not(feature = "tracing"))]
        let _unused_without_features = reply;
    }
}

/// Returns `EVALSHA`, or `EVAL` for a server that does not have the script.
#[cfg(feature = "tracing")]
fn operation(command: &redis::Cmd) -> &str {
    match command.args_iter().next() {
        Some(redis::Arg::Simple(name)) => std::str::from_utf8(name).unwrap_or_default(),
        _ => "",
    }
}

/// Returns the host and the port, or the path of a socket.
#[cfg(feature = "tracing")]
fn server(address: &str) -> (&str, Option<u16>) {
    let parts = address.rsplit_once(':');
    match parts.and_then(|(host, port)| Some((host, port.parse().ok()?))) {
        Some((host, port)) => (host.trim_matches(['[', ']']), Some(port)),
        None => (address, None),
    }
}

#[cfg(all(test, feature = "tracing"))]
mod tests {
    use super::*;

    #[test]
    fn address_is_host_and_port_or_path() {
        assert_eq!(server("127.0.0.1:6379"), ("127.0.0.1", Some(6379)));
        assert_eq!(server("[::1]:6379"), ("::1", Some(6379)));
        assert_eq!(server("/run/redis.sock"), ("/run/redis.sock", None));
    }
}
