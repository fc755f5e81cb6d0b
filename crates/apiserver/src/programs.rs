//! `GET /cox/program/<digest>`: a program that the administrator of this server has laid out for the machines of the cluster.
//!
//! Files of one directory, each under its SHA-256 in hexadecimal digits; whoever asks knows what it must be. A non-resource URL,
//! authorized like any other.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use api::Status;
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Response, header};
use registry::Verb;
use tokio::io::AsyncReadExt;

use crate::body::{Body, BodyError, stream};
use crate::request_info::RequestInfo;

pub(crate) const PATH: &str = "/cox/program/";
/// What is read of a file at a time.
const CHUNK: usize = 256 << 10;
const DIGEST_LENGTH: usize = 64;

pub(crate) fn serve(dir: Option<&Path>, info: &RequestInfo) -> Result<Response<Body>, Status> {
    if info.verb != Verb::Get {
        return Err(Status::method_not_allowed());
    }
    let digest = info.path.strip_prefix(PATH).filter(|name| is_digest(name)).ok_or_else(Status::no_such_path)?;
    let path = dir.ok_or_else(Status::no_such_path)?.join(digest);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Status::no_such_path()),
        Err(error) => return Err(Status::internal(error)),
    };
    let length = file.metadata().map_err(Status::internal)?.len();
    let chunks = futures_util::stream::try_unfold(tokio::fs::File::from_std(file), |mut file| async move {
        let mut chunk = BytesMut::with_capacity(CHUNK);
        match file.read_buf(&mut chunk).await? {
            0 => Ok::<_, BodyError>(None),
            _ => Ok(Some((Bytes::from(chunk), file))),
        }
    });
    let mut response = Response::new(stream(chunks));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Ok(response)
}

/// Nothing else is the name of a file here.
fn is_digest(name: &str) -> bool {
    name.len() == DIGEST_LENGTH && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn ask(dir: Option<&Path>, method: &http::Method, path: &str) -> Result<Response<Body>, u16> {
        let info = RequestInfo::new(method, &path.parse().unwrap());
        serve(dir, &info).map_err(|status| status.code)
    }

    #[tokio::test]
    async fn security_only_programs_that_were_laid_out_are_served() {
        let dir = tempfile::tempdir().unwrap();
        let (programs, digest) = (dir.path().join("programs"), "0a".repeat(32));
        std::fs::create_dir(&programs).unwrap();
        let program = vec![7; CHUNK + 1];
        std::fs::write(programs.join(&digest), &program).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::write(programs.join("other"), "o").unwrap();
        let path = format!("{PATH}{digest}");
        let answer = ask(Some(&programs), &http::Method::GET, &path).unwrap();
        assert_eq!(answer.headers()[header::CONTENT_LENGTH], program.len().to_string());
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), program);
        for wrong in
            ["", "other", "../secret", "..%2fsecret", &"0A".repeat(32), &"0b".repeat(32), &format!("{digest}/")]
        {
            let refused = ask(Some(&programs), &http::Method::GET, &format!("{PATH}{wrong}"));
            assert_eq!(refused.err(), Some(404), "{wrong}");
        }
        assert_eq!(ask(None, &http::Method::GET, &path).err(), Some(404));
        assert_eq!(ask(Some(&programs), &http::Method::POST, &path).err(), Some(405));
    }
}
