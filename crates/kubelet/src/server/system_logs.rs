//! `GET /logs/…`: the files and directories of the node's `/var/log`, as upstream's `enableSystemLogHandler` serves them.
//!
//! Pods may be able to write there, so symbolic links do not lead out of it, and nothing but files and directories is opened.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use api::percent::{encode_except, is_unreserved};
use api::sort::CompactSort as _;
use bytes::Bytes;
use client::Body;
use futures_util::StreamExt;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use tokio::sync::mpsc;

use super::{boxed, text};

pub(super) const ROOT: &str = "/var/log";
/// Chunks in flight; a slow reader slows the reading of the file.
const CHUNKS: usize = 4;
const CHUNK: usize = 64 * 1024;

/// What is at a path below the root.
enum Found {
    File(File, u64),
    /// The names in it, those of directories with a slash.
    Directory(Vec<String>),
}

/// `path` is what comes after `/logs/`, as it was sent.
pub(super) async fn serve(root: &'static str, path: &str) -> Response<Body> {
    let path = api::percent::decode(path, false).into_owned();
    let found = tokio::task::spawn_blocking(move || find(Path::new(root), &path)).await;
    match found.map_err(io::Error::other).and_then(|found| found) {
        Ok(Found::Directory(names)) => listing(&names),
        Ok(Found::File(file, length)) => content(file, length),
        Err(error) => match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM | libc::EXDEV) => text(StatusCode::FORBIDDEN, "403 Forbidden\n"),
            Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG | libc::ENXIO) => {
                text(StatusCode::NOT_FOUND, "404 page not found\n")
            }
            _ => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
    }
}

fn find(root: &Path, path: &str) -> io::Result<Found> {
    let root = nix::fcntl::open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let path = path.trim_matches('/');
    // What is opened for reading blocks nobody, should it be a pipe.
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = File::from(openat2(root.as_fd(), if path.is_empty() { "." } else { path }, how)?);
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok(Found::File(file, metadata.len()));
    }
    if !metadata.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::ENOENT));
    }
    let mut directory = nix::dir::Dir::from_fd(file.into())?;
    let mut names = Vec::new();
    for entry in directory.iter() {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if name != "." && name != ".." {
            let slash = if entry.file_type() == Some(nix::dir::Type::Directory) { "/" } else { "" };
            names.push(format!("{name}{slash}"));
        }
    }
    names.compact_sort();
    Ok(Found::Directory(names))
}

/// As Go's file server lists a directory.
fn listing(names: &[String]) -> Response<Body> {
    let mut page = String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for name in names {
        page.push_str(&format!("<a href=\"{}\">{}</a>\n", link(name), escaped(name)));
    }
    page.push_str("</pre>\n");
    let mut response = Response::new(boxed(page));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

fn escaped(name: &str) -> String {
    name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;").replace('\'', "&#39;")
}

/// A relative address, in which nothing has a meaning but a slash at the end.
fn link(name: &str) -> String {
    encode_except(name, |byte| is_unreserved(byte) || byte == b'/')
}

fn content(file: File, length: u64) -> Response<Body> {
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(CHUNKS);
    // Ends with the file, or when the reader goes away: the channel closes.
    tokio::task::spawn_blocking(move || {
        // A log grows while it is read; what was announced is what is sent.
        let mut file = file.take(length);
        loop {
            let mut chunk = vec![0; CHUNK];
            let sent = match file.read(&mut chunk) {
                Ok(0) => return,
                Ok(count) => sender.blocking_send(Ok(Bytes::copy_from_slice(&chunk[..count]))),
                Err(error) => {
                    let _ = sender.blocking_send(Err(error));
                    return;
                }
            };
            if sent.is_err() {
                return;
            }
        }
    });
    let chunks = tokio_stream::wrappers::ReceiverStream::new(receiver)
        .map(|chunk| chunk.map(Frame::data).map_err(client::BoxError::from));
    let mut response = Response::new(StreamBody::new(chunks).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CONTENT_LENGTH, length.into());
    // Whatever is in a log, it is text.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn get(root: &'static str, path: &str) -> (u16, String) {
        let response = serve(root, path).await;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn security_the_node_s_logs_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (root, secret) = (dir.path().join("log"), dir.path().join("secret"));
        std::fs::create_dir_all(root.join("pods")).unwrap();
        std::fs::write(&secret, "key").unwrap();
        std::fs::write(root.join("syslog"), "line\n").unwrap();
        std::fs::write(root.join("a<b +1"), "x").unwrap();
        std::fs::write(root.join("pods/0.log"), "y".repeat(3 * CHUNK)).unwrap();
        std::os::unix::fs::symlink("pods/0.log", root.join("inside")).unwrap();
        std::os::unix::fs::symlink("../secret", root.join("outside")).unwrap();
        std::os::unix::fs::symlink(&secret, root.join("absolute")).unwrap();
        nix::unistd::mkfifo(&root.join("pipe"), Mode::S_IRWXU).unwrap();
        let root: &'static str = Box::leak(root.display().to_string().into_boxed_str());

        let (code, page) = get(root, "").await;
        assert_eq!(code, 200);
        for line in [
            "<a href=\"pods/\">pods/</a>\n",
            "<a href=\"a%3Cb%20%2B1\">a&lt;b +1</a>\n",
            "<a href=\"syslog\">syslog</a>\n",
        ] {
            assert!(page.contains(line), "{page}");
        }
        for (path, expected) in [
            ("syslog", (200, "line\n")),
            ("a%3Cb%20+1", (200, "x")),
            ("missing", (404, "404 page not found\n")),
            ("pipe", (404, "404 page not found\n")),
            ("outside", (403, "403 Forbidden\n")),
            ("absolute", (403, "403 Forbidden\n")),
            ("../secret", (403, "403 Forbidden\n")),
            ("%2e%2e/secret", (403, "403 Forbidden\n")),
            ("pods/..%2f..%2fsecret", (403, "403 Forbidden\n")),
        ] {
            let (code, body) = get(root, path).await;
            assert_eq!((code, body.as_str()), expected, "{path}");
        }
        assert_eq!(get(root, "inside").await.1.len(), 3 * CHUNK);
        assert!(get(root, "pods/").await.1.contains("0.log"));
    }
}
