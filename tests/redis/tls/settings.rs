//! Settings that no connection can use.

use deadpool_redis::{Config, Runtime};
use tower_lock::{ConnectError, RedisBackend};

use crate::support::tls::Authority;

#[tokio::test]
async fn unusable_certificates_return_config_error() {
    let authority = Authority::new();
    let (good, other) = (authority.issue(), authority.issue());
    let ca = String::from_utf8(authority.ca().to_vec()).unwrap();
    let cut = &good.key[..good.key.len() / 2];
    let tls = || RedisBackend::builder("rediss://127.0.0.1:1");
    let pool = || {
        let config = Config::from_url("redis://127.0.0.1:1");
        RedisBackend::from_pool(config.create_pool(Some(Runtime::Tokio1)).unwrap())
    };
    let mut unusable = Vec::new();
    for pem in ["", "no PEM", &good.key, cut, &ca.replace("MII", "MIJ")] {
        unusable.push(("ca_certificate", tls().ca_certificate(pem)));
    }
    for (certificate, key) in [
        ("", &*good.key),
        (&good.certificate, ""),
        (&good.certificate, cut),
        (&good.certificate, &other.key),
        (&good.certificate, &good.certificate),
        (&good.key, &good.certificate),
    ] {
        let builder = tls().client_certificate(certificate, key);
        unusable.push(("client_certificate", builder));
    }
    // These connections would ignore a CA certificate.
    for builder in [
        RedisBackend::builder("redis://127.0.0.1:1"),
        RedisBackend::builder("redis+unix:///nowhere"),
        RedisBackend::builder("redis+sentinel://127.0.0.1:1/locks"),
        RedisBackend::builder("redis+cluster://127.0.0.1:1"),
        tls().notify("redis://127.0.0.1:1"),
        pool(),
        pool().notify("redis://127.0.0.1:1"),
    ] {
        unusable.push(("ca_certificate", builder.ca_certificate(&*ca)));
    }
    for builder in [
        tls().tls_server_name(""),
        tls().tls_server_name("no name"),
        RedisBackend::builder("redis://127.0.0.1:1").tls_server_name("locks.example"),
        pool().tls_server_name("locks.example"),
    ] {
        unusable.push(("tls_server_name", builder));
    }
    let plain = RedisBackend::builder("redis://127.0.0.1:1");
    let plain = plain.client_certificate(&*good.certificate, &*good.key);
    unusable.push(("client_certificate", plain));

    let secret = &good.key.lines().nth(1).unwrap()[..20];
    for (index, (field, builder)) in unusable.into_iter().enumerate() {
        assert!(!format!("{builder:?}").contains(secret));
        match builder.connect().await {
            Err(ConnectError::Config(error)) => {
                assert_eq!(error.field(), field, "{index}: {error}");
                assert!(!format!("{error} {error:?}").contains(secret));
            }
            outcome => panic!("{index}: {outcome:?}"),
        }
    }
}
