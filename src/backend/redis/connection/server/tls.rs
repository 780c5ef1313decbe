//! Whom to trust and what to show, where TLS is spoken.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisError, TlsCertificates};
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::ConfigError;

const CA: &str = "ca_certificate";
const CLIENT: &str = "client_certificate";

/// What the builder was given, as PEM. Holds a private key: no `Debug`.
#[derive(Default)]
pub(crate) struct Certificates {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    /// Makes the connection of the URL in `field` one of these certificates, where it is one of TLS.
    pub(crate) fn apply(
        &self,
        field: &'static str,
        info: ConnectionInfo,
    ) -> Result<ConnectionInfo, ConfigError> {
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            self.refuse(&format!("the URL in `{field}` is not one of TLS"))?;
            return Ok(info);
        }
        let provider = provider();
        self.check(&provider)?;
        if self.given().is_none() {
            return Ok(info);
        }
        let certificates = TlsCertificates {
            client_tls: self.client.clone().map(|(cert, key)| ClientTlsConfig {
                client_cert: cert,
                client_key: key,
            }),
            root_cert: self.ca.clone(),
        };
        // Opening a client connects nothing; it has a place for them that nothing else reaches.
        let client = Client::build_with_tls(info, certificates);
        let client = client.map_err(|_| ConfigError::new(field, "certificates do not fit"))?;
        Ok(client.get_connection_info().clone())
    }

    /// Certificates that nothing would look at are a mistake: who gives them relies on them.
    pub(crate) fn refuse(&self, problem: &str) -> Result<(), ConfigError> {
        self.given()
            .map_or(Ok(()), |field| Err(ConfigError::new(field, problem)))
    }

    fn given(&self) -> Option<&'static str> {
        let ca = self.ca.is_some().then_some(CA);
        ca.or(self.client.is_some().then_some(CLIENT))
    }

    /// Here and not at the first connection, and in words of our own: those of a parser may repeat
    /// what they stumbled over.
    fn check(&self, provider: &CryptoProvider) -> Result<(), ConfigError> {
        if let Some(pem) = &self.ca {
            let mut roots = RootCertStore::empty();
            let all = certificates(CA, pem)?;
            let unusable = || ConfigError::new(CA, "not the certificate of an authority");
            all.into_iter()
                .try_for_each(|it| roots.add(it))
                .map_err(|_| unusable())?;
        }
        if let Some((pem, key)) = &self.client {
            let chain = certificates(CLIENT, pem)?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|_| ConfigError::new(CLIENT, "the key is not PEM with a private key"))?;
            CertifiedKey::from_der(chain, key, provider)
                .map_err(|_| ConfigError::new(CLIENT, "the key does not fit the certificate"))?;
        }
        Ok(())
    }
}

fn certificates(
    field: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    // Without any, an empty list of authorities would be trusted instead of the default ones.
    all.ok()
        .filter(|all| !all.is_empty())
        .ok_or_else(|| ConfigError::new(field, "not PEM with a certificate"))
}

/// The process' cryptography. The redis crate asks for it and brings none; rustls panics where there
/// is none, or where the crates of the program brought two and nobody chose. Whoever chose before
/// is heeded.
fn provider() -> Arc<CryptoProvider> {
    loop {
        if let Some(provider) = CryptoProvider::get_default() {
            return Arc::clone(provider);
        }
        // Refused where another thread was faster, and then there is one.
        drop(ring::default_provider().install_default());
    }
}

/// Whether client and server do not agree on TLS: a certificate that is not trusted, not for this
/// name, expired or missing, or no TLS at all. That is mended by a person, not by a retry.
pub(crate) fn is_disagreement(error: &RedisError) -> bool {
    // An I/O error does not count what it wraps among its sources, and the redis crate gives the
    // I/O error in its `Arc`.
    let source = error.source();
    let shared = source.and_then(|it| it.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let io = shared.and_then(|it| it.downcast_ref::<io::Error>());
    let cause = io.and_then(io::Error::get_ref);
    cause.is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>)
}
