//! A headless Chromium and its driver. Both end with their owner, even if a test panics.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fantoccini::key::Key;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use url::{ParseError, Url};

use crate::support::process::free_port;

const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);
const CHROMIUM: &str = "/usr/lib/chromium/chromium";

/// Messages of the console that some tests permit: rejected requests, and a process that does not reply.
pub(crate) const CONFLICT: &str =
    "/force-release - Failed to load resource: the server responded with a status of 409";
pub(crate) const TOO_MANY: &str =
    "/inspect - Failed to load resource: the server responded with a status of 429";
pub(crate) const UNAVAILABLE: &str =
    "/inspect - Failed to load resource: the server responded with a status of 503";
pub(crate) const SILENT: &str = "Failed to load resource: net::ERR_";

pub(crate) struct Browser {
    client: Client,
    /// Whether the console was checked at the end.
    is_finished: bool,
    driver: Child,
    /// The profile, which also identifies the processes of the browser.
    profile: TempDir,
}

/// A command of ChromeDriver that is not part of WebDriver.
#[derive(Debug)]
struct Extension {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Extension {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap(), self.path))
    }

    fn method_and_body(&self, _: &Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.body.to_string()))
    }
}

/// Starts chromedriver. Returns `None` if another process has taken the port.
fn launch(port: u16) -> Option<(Child, u16)> {
    let mut driver = Command::new("chromedriver")
        .arg(format!("--port={port}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("chromedriver: run `.ci/install chromium chromium-driver`");
    let mut lines = BufReader::new(driver.stdout.take().expect("piped")).lines();
    let runs = lines.any(|line| line.is_ok_and(|line| line.contains("started successfully")));
    if !runs {
        driver.wait().expect("it has ended");
    }
    runs.then_some((driver, port))
}

impl Browser {
    pub(crate) async fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let (driver, port) = (0..10)
            .find_map(|_| launch(free_port()))
            .expect("a free port");
        let mut args = vec![
            "--headless=new".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-extensions".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--window-size=1280,900".to_owned(),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        // The sandbox of Chromium does not work for root.
        if is_root() {
            args.push("--no-sandbox".to_owned());
        }
        let capabilities = json!({
            "browserName": "chrome",
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "binary": CHROMIUM, "args": args },
        });
        let Value::Object(capabilities) = capabilities else {
            unreachable!("it is an object");
        };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&format!("http://127.0.0.1:{port}"))
            .await
            .expect("a browser");
        Self {
            client,
            is_finished: false,
            driver,
            profile,
        }
    }

    pub(crate) async fn open(&self, url: &str) {
        self.client.goto(url).await.unwrap();
    }

    /// Opens a dashboard and waits for its first frame.
    pub(crate) async fn open_live(&self, url: &str) {
        self.open(url).await;
        self.until("document.getElementById('live').textContent.startsWith('Live')")
            .await;
    }

    /// Opens another tab in front of the page, which is then hidden.
    pub(crate) async fn hide(&self) {
        self.devtools("Target.createTarget", json!({ "url": "about:blank" }))
            .await;
    }

    /// Brings the page to the front again.
    pub(crate) async fn show(&self) {
        self.devtools("Page.bringToFront", json!({})).await;
    }

    /// Returns the value of an expression.
    pub(crate) async fn value(&self, expression: &str) -> Value {
        let script = format!("return ({expression})");
        self.client.execute(&script, vec![]).await.unwrap()
    }

    pub(crate) async fn run(&self, script: &str) -> Result<Value, fantoccini::error::CmdError> {
        self.client.execute(script, vec![]).await
    }

    /// Returns the text of the first element.
    pub(crate) async fn text(&self, css: &str) -> String {
        let element = self.client.find(Locator::Css(css)).await.unwrap();
        element.text().await.unwrap()
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&self, expression: &str) {
        let start = Instant::now();
        while self.value(expression).await != Value::Bool(true) {
            if start.elapsed() > PATIENCE {
                let body = self.value("document.body.innerText").await;
                let log = self.console().await;
                panic!(
                    "not within {PATIENCE:?}: {expression}\n{log:?}\n{}",
                    body.as_str().unwrap()
                );
            }
            sleep(PAUSE).await;
        }
    }

    /// Types keys into the element that has the focus.
    pub(crate) async fn keys(&self, text: &str) {
        let element = self.client.active_element().await.unwrap();
        element.send_keys(text).await.unwrap();
    }

    pub(crate) async fn press(&self, key: Key) {
        self.keys(&char::from(key).to_string()).await;
    }

    /// Presses the tabulator until an element matches, as an operator without a mouse does.
    pub(crate) async fn tab_to(&self, css: &str) {
        for _ in 0..60 {
            self.press(Key::Tab).await;
            let found = format!("document.activeElement.matches({})", json!(css));
            if self.value(&found).await == Value::Bool(true) {
                return;
            }
        }
        panic!("the tabulator does not reach {css}");
    }

    /// Returns the messages of the console since the last call, violations of the policy included.
    pub(crate) async fn console(&self) -> Vec<String> {
        let log = self.extension("se/log", json!({ "type": "browser" })).await;
        let entries = log.as_array().cloned().unwrap_or_default();
        let text = |entry: &Value| entry["message"].as_str().unwrap_or_default().to_owned();
        entries.iter().map(text).collect()
    }

    /// Expects that the console has no messages except those that contain a permitted text. Each test ends with it.
    pub(crate) async fn finish(mut self, permitted: &[&str]) {
        self.is_finished = true;
        let mut log = self.console().await;
        log.retain(|line| !permitted.iter().any(|text| line.contains(text)));
        assert_eq!(log, Vec::<String>::new());
    }

    pub(crate) async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        self.extension("goog/cdp/execute", body).await
    }

    async fn extension(&self, path: &'static str, body: Value) -> Value {
        self.client
            .issue_cmd(Extension { path, body })
            .await
            .unwrap()
    }

    /// Emulates a setting of the operator, such as `color-scheme`.
    pub(crate) async fn prefers(&self, name: &str, value: &str) {
        let feature = json!({ "name": format!("prefers-{name}"), "value": value });
        let media = json!({ "features": [feature] });
        self.devtools("Emulation.setEmulatedMedia", media).await;
    }

    pub(crate) async fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", size)
            .await;
    }

    /// Stores a picture of the whole page under `target/tmp/dashboard`.
    pub(crate) async fn screenshot(&self, name: &str) -> Vec<u8> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard");
        std::fs::create_dir_all(&folder).unwrap();
        let picture = self.client.screenshot().await.unwrap();
        std::fs::write(folder.join(name), &picture).unwrap();
        picture
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.driver.kill());
        drop(self.driver.wait());
        let profile = self.profile.path().as_os_str().as_encoded_bytes();
        for process in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
            let command = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            if command.windows(profile.len()).any(|part| part == profile) {
                let id = process.file_name();
                drop(
                    Command::new("kill")
                        .arg("-KILL")
                        .arg(id)
                        .stderr(Stdio::null())
                        .status(),
                );
            }
        }
        let is_checked = self.is_finished || std::thread::panicking();
        assert!(is_checked, "the test does not end with `finish`");
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap().stdout;
    id.trim_ascii() == b"0"
}
