//! A real browser on a test's host, driven over WebDriver.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Host, WAIT_TIMEOUT, describe};

pub(crate) struct Browser<'a> {
    host: &'a Host,
    driver: Child,
    base: String,
    _profile: tempfile::TempDir,
}

impl<'a> Browser<'a> {
    pub(crate) fn start(host: &'a Host) -> Browser<'a> {
        let profile = tempfile::Builder::new().prefix("coxtest-browser-").tempdir().unwrap();
        let mut driver =
            host.command("chromedriver").arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let port = line_with(&mut driver, "started successfully on port ");
        let base = format!("http://127.0.0.1:{}", port.trim_end_matches('.'));
        let mut browser = Browser { host, driver, base, _profile: profile };
        let arguments: Vec<String> = [
            "headless",
            "no-sandbox",
            "disable-gpu",
            "disable-quic",
            "disable-dev-shm-usage",
            "no-first-run",
            "disable-background-networking",
            "disable-component-update",
            "disable-sync",
            "window-size=1280,900",
        ]
        .map(|argument| format!("--{argument}"))
        .into_iter()
        .chain([format!("--user-data-dir={}", browser._profile.path().display())])
        .collect();
        let options = json!({"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}});
        let session = browser.call("POST", "/session", &json!({"capabilities": {"alwaysMatch": options}}));
        browser.base = format!("{}/session/{}", browser.base, session["sessionId"].as_str().unwrap());
        browser
    }

    pub(crate) fn open(&self, url: &str) {
        self.call("POST", "/url", &json!({ "url": url }));
    }

    /// What an expression is on the page.
    pub(crate) fn eval(&self, expression: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({"script": format!("return {expression}"), "args": []}))
    }

    /// Waits until an expression is true on the page.
    pub(crate) fn wait(&self, expression: &str) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while self.eval(expression) != Value::Bool(true) {
            let page = || self.eval("document.body.innerText");
            assert!(Instant::now() < deadline, "never: {expression}\n{}\n{:?}", page(), self.complaints());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Presses a key, as a person would.
    pub(crate) fn press(&self, key: &str) {
        let keys = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        self.call("POST", "/actions", &json!({"actions": [{"type": "key", "id": "keys", "actions": keys}]}));
    }

    pub(crate) fn resize(&self, width: u32, height: u32) {
        self.call("POST", "/window/rect", &json!({"width": width, "height": height}));
    }

    pub(crate) fn screenshot(&self, path: &Path) {
        use base64::Engine;
        let picture = self.call("GET", "/screenshot", &Value::Null);
        let bytes = base64::engine::general_purpose::STANDARD.decode(picture.as_str().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// Errors on the browser's console.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.call("POST", "/se/log", &json!({"type": "browser"}));
        let severe = log.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].to_string()).collect()
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut curl = self.host.command("curl");
        curl.args(["-sS", "-X", method, "-H", "Content-Type: application/json"]);
        if !body.is_null() {
            curl.arg("-d").arg(body.to_string());
        }
        let output = curl.arg(format!("{}{path}", self.base)).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", describe(&output)));
        assert!(answer["value"]["error"].is_null(), "{method} {path} {body}: {answer}");
        answer["value"].clone()
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.call("DELETE", "", &Value::Null);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// What follows `words` on the first line of a program that has them.
pub(crate) fn line_with(program: &mut Child, words: &str) -> String {
    let lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let found = lines.map_while(Result::ok).find_map(|line| Some(line.split_once(words)?.1.to_owned()));
    found.unwrap_or_else(|| panic!("the program never said {words:?}"))
}
