//! Debian's `docker-registry` on a free port of loopback, as a process that ends with its handle.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

pub struct Registry {
    pub addr: SocketAddr,
    authorization: Option<&'static str>,
    process: Child,
    _directory: tempfile::TempDir,
}

/// The user and password of [`start_with_password`].
pub const USER: &str = "cox";
pub const PASSWORD: &str = "secret";

/// A registry that anyone may use.
pub fn start() -> Registry {
    launch(false)
}

/// A registry that asks for [`USER`] and [`PASSWORD`].
pub fn start_with_password() -> Registry {
    launch(true)
}

/// `sha256:…` of some bytes.
pub fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    format!("sha256:{}", hash.iter().map(|b| format!("{b:02x}")).collect::<String>())
}

fn launch(password: bool) -> Registry {
    let directory = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let addr: SocketAddr = ([127, 0, 0, 1], port).into();
    let mut config = format!(
        "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\n  delete: {{enabled: true}}\nhttp:\n  addr: {addr}\n",
        directory.path().join("data").display()
    );
    if password {
        let file = directory.path().join("htpasswd");
        // bcrypt of PASSWORD.
        std::fs::write(&file, format!("{USER}:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n"))
            .unwrap();
        config.push_str(&format!("auth:\n  htpasswd: {{realm: test, path: {}}}\n", file.display()));
    }
    let file = directory.path().join("config.yml");
    std::fs::write(&file, config).unwrap();
    let process = Command::new("docker-registry")
        .arg("serve")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("docker-registry is installed (scripts/deps)");
    let registry = Registry {
        addr,
        // base64 of USER:PASSWORD.
        authorization: password.then_some("Basic Y294OnNlY3JldA=="),
        process,
        _directory: directory,
    };
    registry.wait_until_up();
    registry
}

impl Registry {
    /// `http://127.0.0.1:port`, as mirrors are configured.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// A `registries.yaml` that makes this the mirror of docker.io.
    pub fn registries_yaml(&self) -> String {
        format!("mirrors:\n  docker.io:\n    endpoint: [\"{}\"]\n", self.url())
    }

    /// Pushes a raw manifest (an index, or something broken on purpose).
    pub fn push_manifest(&self, repository: &str, tag: &str, media_type: &str, manifest: &[u8]) {
        let (status, _, body) = self.request("PUT", &format!("/v2/{repository}/manifests/{tag}"), media_type, manifest);
        assert_eq!(status, 201, "pushing a manifest: {}", String::from_utf8_lossy(&body));
    }

    pub(crate) fn push_blob(&self, repository: &str, blob: &[u8]) {
        let (status, headers, body) =
            self.request("POST", &format!("/v2/{repository}/blobs/uploads/"), "application/octet-stream", b"");
        assert_eq!(status, 202, "starting an upload: {}", String::from_utf8_lossy(&body));
        let location = headers
            .lines()
            .find_map(|l| l.to_lowercase().starts_with("location:").then(|| l["location:".len()..].trim().to_string()))
            .expect("an upload has a location");
        let path = location.strip_prefix(&self.url()).unwrap_or(&location);
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{separator}digest={}", digest(blob));
        let (status, _, body) = self.request("PUT", &path, "application/octet-stream", blob);
        assert_eq!(status, 201, "uploading a blob: {}", String::from_utf8_lossy(&body));
    }

    fn request(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(self.addr).unwrap();
        let authorization = self.authorization.map(|a| format!("Authorization: {a}\r\n")).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {content_type}\r\n{authorization}Content-Length: {}\r\n\r\n",
            self.addr,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("an HTTP answer");
        let headers = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = headers.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        (status, headers, answer[end + 4..].to_vec())
    }

    fn wait_until_up(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(self.addr).is_err() {
            assert!(Instant::now() < deadline, "docker-registry did not come up");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
