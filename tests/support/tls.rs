//! A server with TLS, and the authority that signs its certificate.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::process::program;
use super::redis_server::{FREE_PORT, RedisServer};

/// A server with a TLS port in addition to the port of every server.
pub(crate) struct TlsServer {
    server: RedisServer,
    authority: Arc<Authority>,
    /// The server also reads these files at a restart.
    files: TempDir,
}

impl TlsServer {
    /// Starts a server that accepts any client.
    pub(crate) fn start() -> Self {
        Self::start_with(&["--tls-auth-clients", "no"])
    }

    /// Starts a server that accepts only clients with a certificate of [`TlsServer::authority`].
    pub(crate) fn start_mutual() -> Self {
        Self::start_with(&["--tls-auth-clients", "yes"])
    }

    /// Starts with more options, which must include `--tls-auth-clients`.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        Self::start_of(Arc::default(), None, options)
    }

    /// Starts another server of the same authority, with its own configuration file.
    pub(crate) fn start_beside(&self, configuration: &str, options: &[&str]) -> Self {
        Self::start_of(Arc::clone(&self.authority), Some(configuration), options)
    }

    fn start_of(authority: Arc<Authority>, configuration: Option<&str>, options: &[&str]) -> Self {
        let files = tempfile::tempdir().expect("a directory for certificates");
        let ca = write(&files, "ca", &authority.ca);
        let [cert, key] = write_identity(&files, &authority.issue());
        let basis = [
            ["--tls-port", FREE_PORT],
            ["--tls-ca-cert-file", &ca],
            ["--tls-cert-file", &cert],
            ["--tls-key-file", &key],
        ];
        let options = [basis.as_flattened(), options].concat();
        let server = RedisServer::try_start(configuration, &options).unwrap_or_else(|log| {
            panic!(
                "these tests need a Redis server that was built with TLS (`make BUILD_TLS=yes`); `{}` does not start with it: {log}",
                program()
            )
        });
        Self {
            server,
            authority,
            files,
        }
    }

    /// Presents another certificate to new connections from now on.
    pub(crate) fn show(&self, identity: &Identity) {
        let [cert, key] = write_identity(&self.files, identity);
        let options = ["tls-cert-file", &cert, "tls-key-file", &key];
        self.server
            .cli(&[&["CONFIG", "SET"], &options[..]].concat());
    }

    pub(crate) fn server(&self) -> &RedisServer {
        &self.server
    }

    pub(crate) fn port(&self) -> u16 {
        let port = self.server.option("--tls-port").expect("an option of all");
        port.parse().expect("a number")
    }

    pub(crate) fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.port())
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns the certificate that clients must trust, as PEM.
    pub(crate) fn ca(&self) -> &[u8] {
        self.authority.ca()
    }
}

fn write(files: &TempDir, name: &str, pem: &str) -> String {
    let path = files.path().join(name);
    std::fs::write(&path, pem).expect("a file");
    path.display().to_string()
}

/// The paths of a certificate and its key.
fn write_identity(files: &TempDir, identity: &Identity) -> [String; 2] {
    let certificate = write(files, "cert", &identity.certificate);
    [certificate, write(files, "key", &identity.key)]
}

/// An authority that signs certificates. Each one is unique, and trusted only by clients that are
/// configured for it.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    ca: String,
}

/// The certificate and the key of one side of a connection, as PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // With the name of the certificates that it signs, they would look self-signed.
        let name = "an authority of tests";
        params.distinguished_name.push(DnType::CommonName, name);
        let ca = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, ca }
    }

    /// Returns its own certificate, as PEM.
    pub(crate) fn ca(&self) -> &[u8] {
        self.ca.as_bytes()
    }

    /// Returns a certificate for this machine, as a server and as a client.
    pub(crate) fn issue(&self) -> Identity {
        self.issue_for(&["127.0.0.1", "localhost"])
    }

    pub(crate) fn issue_for(&self, names: &[&str]) -> Identity {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        let params = CertificateParams::new(names).expect("names");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer);
        Identity {
            certificate: certificate.expect("a certificate").pem(),
            key: key.serialize_pem(),
        }
    }
}
