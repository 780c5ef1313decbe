//! A PostgreSQL server in a temporary folder.

use std::error::Error;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::time::sleep;

const NOBODY: u32 = 65534;

/// It ends when dropped.
pub(crate) struct Server {
    process: Child,
    port: u16,
    folder: PathBuf,
}

/// Returns the folder that `POSTGRES_BIN` names, or the newest one of Debian's packages.
fn programs() -> Result<PathBuf, Box<dyn Error>> {
    if let Some(folder) = std::env::var_os("POSTGRES_BIN") {
        return Ok(folder.into());
    }
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let versions = versions.filter_map(|it| it.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let version = versions
        .max()
        .ok_or("install PostgreSQL, or name its folder in POSTGRES_BIN")?;
    Ok(format!("/usr/lib/postgresql/{version}/bin").into())
}

/// Returns a command for a program of the server, which rejects root.
fn command(program: &str, folder: &Path) -> Result<Command, Box<dyn Error>> {
    let mut user = fs::metadata(folder)?.uid();
    if user == 0 {
        user = NOBODY;
        chown(folder, Some(user), None)?;
    }
    let mut command = Command::new(programs()?.join(program));
    command
        .uid(user)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Ok(command)
}

impl Server {
    pub(crate) fn start() -> Result<Self, Box<dyn Error>> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = std::env::temp_dir().join(format!("ledger-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let mut create = command("initdb", &folder)?;
        create.args(["-D", "data", "-U", "postgres", "-A", "trust", "--no-sync"]);
        if !create.status()?.success() {
            return Err("initdb fails".into());
        }
        let mut run = command("postgres", &folder)?;
        run.args([
            "-D",
            "data",
            "-p",
            &port.to_string(),
            "-c",
            "unix_socket_directories=",
        ]);
        Ok(Self {
            process: run.spawn()?,
            port,
            folder,
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Waits until it accepts connections.
    pub(crate) async fn ready(&self) -> Result<(), Box<dyn Error>> {
        for _ in 0..200 {
            if super::connect(&self.url()).await.is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Err("the server does not start".into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // So its sessions end as well.
        drop(
            Command::new("kill")
                .args(["-QUIT", &self.process.id().to_string()])
                .status(),
        );
        drop(self.process.wait());
        drop(fs::remove_dir_all(&self.folder));
    }
}
