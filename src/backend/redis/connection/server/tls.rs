//! The certificates of TLS connections.

use std::sync::Arc;

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, TlsCertificates};
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;

use crate::ConfigError;

const CA: &str = "ca_certificate";
const CLIENT: &str = "client_certificate";
const NAME: &str = "tls_server_name";

/// The builder's certificates, as PEM. They include a private key, so there is no `Debug`.
#[derive(Default)]
pub(crate) struct Certificates {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
    /// The name that the certificates of servers must contain. Defaults to the host.
    pub(crate) server_name: Option<String>,
}

impl Certificates {
    /// Adds the certificates to the connection of the URL in `field`, if it uses TLS.
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
        if self.ca.is_none() && self.client.is_none() {
            return Ok(info);
        }
        let certificates = TlsCertificates {
            client_tls: self.client.clone().map(|(cert, key)| ClientTlsConfig {
                client_cert: cert,
                client_key: key,
            }),
            root_cert: self.ca.clone(),
        };
        // A client opens no connection. Only its constructor accepts certificates.
        let client = Client::build_with_tls(info, certificates);
        let client = client.map_err(|_| ConfigError::new(field, "certificates do not fit"))?;
        Ok(client.get_connection_info().clone())
    }

    /// Rejects certificates that no connection would use: their caller relies on them.
    pub(crate) fn refuse(&self, problem: &str) -> Result<(), ConfigError> {
        self.given()
            .map_or(Ok(()), |field| Err(ConfigError::new(field, problem)))
    }

    fn given(&self) -> Option<&'static str> {
        let ca = self.ca.is_some().then_some(CA);
        let client = self.client.is_some().then_some(CLIENT);
        let name = self.server_name.is_some().then_some(NAME);
        ca.or(client).or(name)
    }

    /// Checks the certificates before the first connection. A parser's own error may repeat its
    /// input, so it is replaced.
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
        if let Some(name) = &self.server_name {
            ServerName::try_from(name.as_str())
                .map_err(|_| ConfigError::new(NAME, "not a host name or an IP address"))?;
        }
        Ok(())
    }
}

fn certificates(
    field: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    // An empty list would replace the default authorities.
    all.ok()
        .filter(|all| !all.is_empty())
        .ok_or_else(|| ConfigError::new(field, "not PEM with a certificate"))
}

/// Returns the crypto provider of the process, and installs one if there is none.
///
/// The redis crate requires a provider and installs none. rustls panics without one, or if the
/// program links two and chose neither.
fn provider() -> Arc<CryptoProvider> {
    loop {
        if let Some(provider) = CryptoProvider::get_default() {
            return Arc::clone(provider);
        }
        // This fails if another thread was faster, and then there is a provider.
        drop(ring::default_provider().install_default());
    }
}
