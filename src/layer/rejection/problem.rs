//! The response to each kind of error.

use http::StatusCode;

use crate::ErrorKind;

/// The response to one kind of error.
pub(in crate::layer) struct Problem {
    /// The end of the `type` URI. `None` if the status is sufficient: the type is then `about:blank`, and the title
    /// is the phrase of the status (RFC 9457 §4.2.1).
    pub(in crate::layer) name: Option<&'static str>,
    pub(in crate::layer) status: StatusCode,
    pub(in crate::layer) title: &'static str,
    pub(in crate::layer) detail: &'static str,
    /// `true` if a retry can succeed. The response then has a `Retry-After`.
    pub(in crate::layer) temporary: bool,
    pub(in crate::layer) grpc: GrpcStatus,
}

/// The numbers of <https://grpc.io/docs/guides/status-codes/>.
#[derive(Clone, Copy)]
pub(in crate::layer) enum GrpcStatus {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    ResourceExhausted = 8,
    Aborted = 10,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

/// The page that explains the problem types. RFC 9457 §3.1.1 recommends an absolute URI with documentation.
pub(in crate::layer) const PROBLEMS: &str =
    "https://docs.rs/tower-lock/latest/tower_lock/guide/problems/index.html";

impl Problem {
    /// The response if a handler returned the error.
    pub(in crate::layer) fn in_handler(self) -> Self {
        Self {
            name: Some("lock-failed-in-handler"),
            title: "Lock failed in the handler",
            detail: "a lock failed while the request was served; it may be half done",
            temporary: false,
            ..self
        }
    }

    pub(in crate::layer) fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Busy => Self {
                name: Some("resource-busy"),
                status: StatusCode::CONFLICT,
                title: "Resource busy",
                detail: "another request is working on this resource; this is temporary",
                temporary: true,
                grpc: GrpcStatus::Aborted,
            },
            ErrorKind::PermitsExhausted => Self {
                name: Some("permits-exhausted"),
                status: StatusCode::TOO_MANY_REQUESTS,
                title: "No permit free",
                detail: "as many requests as permitted work on this resource, or one that excludes them; this is temporary",
                temporary: true,
                grpc: GrpcStatus::ResourceExhausted,
            },
            ErrorKind::TooManyWaiters => Self {
                name: Some("too-many-waiters"),
                title: "Too many waiters",
                detail: "too many requests wait for this resource; this is temporary",
                ..Self::of(ErrorKind::PermitsExhausted)
            },
            ErrorKind::Overloaded => Self {
                name: Some("lock-overload"),
                status: StatusCode::SERVICE_UNAVAILABLE,
                title: "Lock overload",
                detail: "too many requests wait for locks; this is temporary",
                temporary: true,
                grpc: GrpcStatus::ResourceExhausted,
            },
            // A client sees the same status, but waiting does not help.
            ErrorKind::Refused => Self {
                detail: "the lock backend rejects this server; report this to its operator",
                temporary: false,
                ..Self::of(ErrorKind::Unavailable)
            },
            ErrorKind::Unavailable => Self {
                name: Some("lock-unavailable"),
                status: StatusCode::SERVICE_UNAVAILABLE,
                title: "Lock unavailable",
                detail: "locks cannot be acquired at the moment; this is temporary",
                temporary: true,
                grpc: GrpcStatus::Unavailable,
            },
            ErrorKind::ShuttingDown => Self {
                name: Some("shutting-down"),
                title: "Shutting down",
                detail: "this instance is shutting down; another one can serve the request",
                ..Self::of(ErrorKind::Unavailable)
            },
            // 503 with Retry-After would invite replays of a partial write.
            ErrorKind::Lost => Self {
                name: Some("lock-lost"),
                status: StatusCode::INTERNAL_SERVER_ERROR,
                title: "Lock lost",
                detail: "the lock was lost while the request was served; it may be half done",
                temporary: false,
                grpc: GrpcStatus::Internal,
            },
            ErrorKind::InvalidKey => Self {
                name: Some("lock-key-invalid"),
                status: StatusCode::BAD_REQUEST,
                title: "Lock key invalid",
                detail: "the request does not name a resource that can be locked",
                temporary: false,
                grpc: GrpcStatus::InvalidArgument,
            },
            ErrorKind::Misconfigured => Self {
                name: Some("lock-misconfigured"),
                title: "Lock misconfigured",
                detail: "the server cannot determine the lock of this request; report this to its operator",
                ..Self::of(ErrorKind::Lost)
            },
            ErrorKind::NoRoute => Self {
                name: Some("no-route"),
                status: StatusCode::NOT_FOUND,
                title: "Not found",
                detail: "no route matches the path of the request",
                temporary: false,
                grpc: GrpcStatus::Unimplemented,
            },
            ErrorKind::BodyTooLarge => Self {
                name: None,
                status: StatusCode::PAYLOAD_TOO_LARGE,
                title: "Content Too Large",
                detail: "the body of the request is larger than this server permits",
                temporary: false,
                grpc: GrpcStatus::ResourceExhausted,
            },
            ErrorKind::BodyTimeout => Self {
                name: None,
                status: StatusCode::REQUEST_TIMEOUT,
                title: "Request Timeout",
                detail: "the body of the request did not arrive in time",
                temporary: false,
                grpc: GrpcStatus::DeadlineExceeded,
            },
            ErrorKind::BodyFailed => Self {
                name: None,
                status: StatusCode::BAD_REQUEST,
                title: "Bad Request",
                detail: "the body of the request did not arrive completely",
                temporary: false,
                grpc: GrpcStatus::InvalidArgument,
            },
            ErrorKind::KeyConflict => Self {
                name: Some("lock-key-conflict"),
                title: "Lock key conflict",
                detail: "the key of the lock holds other data, or its owner holds another mode",
                ..Self::of(ErrorKind::Lost)
            },
            ErrorKind::ReentrancyLimit => Self {
                name: Some("lock-reentrancy"),
                title: "Lock reentrancy",
                detail: "the request acquired the same lock too many times",
                ..Self::of(ErrorKind::Lost)
            },
            ErrorKind::Upgrade => Self {
                name: Some("lock-upgrade"),
                title: "Lock upgrade",
                detail: "the request holds the lock shared, or a permit of it, and asks for an exclusive one",
                ..Self::of(ErrorKind::Lost)
            },
            ErrorKind::Unsupported => Self {
                detail: "the server asks for a kind of lock that its backend does not have",
                ..Self::of(ErrorKind::InvalidOption)
            },
            ErrorKind::InvalidOption => Self {
                name: Some("lock-option-invalid"),
                title: "Lock option invalid",
                detail: "the server set an option of the lock that is out of bounds",
                ..Self::of(ErrorKind::Lost)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_type_has_section_in_guide() {
        let page = include_str!("../../guide/problems.rs");
        for kind in [
            ErrorKind::Busy,
            ErrorKind::PermitsExhausted,
            ErrorKind::TooManyWaiters,
            ErrorKind::Overloaded,
            ErrorKind::Unavailable,
            ErrorKind::Refused,
            ErrorKind::Lost,
            ErrorKind::ShuttingDown,
            ErrorKind::InvalidKey,
            ErrorKind::NoRoute,
            ErrorKind::Misconfigured,
            ErrorKind::InvalidOption,
            ErrorKind::KeyConflict,
            ErrorKind::ReentrancyLimit,
            ErrorKind::Upgrade,
            ErrorKind::Unsupported,
        ] {
            let Problem { name, status, .. } = Problem::of(kind);
            let name = name.expect("a type of its own");
            let section = format!("//! # {name}\n//!\n//! Status {}", status.as_u16());
            assert!(page.contains(&section), "{section}");
            let in_handler = Problem::of(kind).in_handler();
            assert_eq!(in_handler.status, status);
            let section = format!("//! # {}\n", in_handler.name.expect("a type of its own"));
            assert!(page.contains(&section), "{section}");
        }
    }
}
