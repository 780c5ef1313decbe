//! A server that speaks TLS, and the authority that vouches for it.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::process::program;
use super::redis_server::{FREE_PORT, RedisServer};

/// A server with a TLS port, besides the one that every server has.
pub(crate) struct TlsServer {
    server: RedisServer,
    authority: Authority,
    /// The server reads them when it starts again, too.
    _files: TempDir,
}

impl TlsServer {
    /// Any client may connect.
    pub(crate) fn start() -> Self {
        Self::start_with(&["--tls-auth-clients", "no"])
    }

    /// Only clients may connect that show a certificate of [`TlsServer::authority`].
    pub(crate) fn start_mutual() -> Self {
        Self::start_with(&["--tls-auth-clients", "yes"])
    }

    /// Starts with more options, of which `--tls-auth-clients` should be one.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        let authority = Authority::new();
        let server = authority.issue();
        let files = tempfile::tempdir().expect("a directory for certificates");
        let file = |name: &str, pem: &str| {
            let path = files.path().join(name);
            std::fs::write(&path, pem).expect("a file");
            path.display().to_string()
        };
        let (ca, cert) = (file("ca", &authority.ca), file("cert", &server.certificate));
        let key = file("key", &server.key);
        let basis = [
            ["--tls-port", FREE_PORT],
            ["--tls-ca-cert-file", &ca],
            ["--tls-cert-file", &cert],
            ["--tls-key-file", &key],
        ];
        let options = [basis.as_flattened(), options].concat();
        let server = RedisServer::try_start(None, &options).unwrap_or_else(|log| {
            panic!(
                "these tests need a Redis server that was built with TLS (`make BUILD_TLS=yes`); `{}` does not start with it: {log}",
                program()
            )
        });
        Self {
            server,
            authority,
            _files: files,
        }
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

    /// The certificate that clients must trust, as PEM.
    pub(crate) fn ca(&self) -> &[u8] {
        self.authority.ca()
    }
}

/// Signs certificates. No two are the same, nor does anybody trust one but who is told to.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    ca: String,
}

/// What one side of a connection shows: PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Were it the name of those it signs, they would look self-signed.
        let name = "an authority of tests";
        params.distinguished_name.push(DnType::CommonName, name);
        let ca = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, ca }
    }

    /// Its own certificate, as PEM.
    pub(crate) fn ca(&self) -> &[u8] {
        self.ca.as_bytes()
    }

    /// For this machine, as a server and as a client.
    pub(crate) fn issue(&self) -> Identity {
        let names = ["127.0.0.1", "localhost"].map(ToOwned::to_owned);
        let params = CertificateParams::new(names).expect("names");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer);
        Identity {
            certificate: certificate.expect("a certificate").pem(),
            key: key.serialize_pem(),
        }
    }
}
