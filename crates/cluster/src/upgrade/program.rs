//! Programs as files: what they are known by, how a server lays one out, and how a machine gets it.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use client::Client;
use http_body_util::BodyExt;
use ring::digest::{Context as Hash, SHA256};
use tokio::io::AsyncWriteExt;

use crate::options::Options;
use crate::pki::private_dir;

/// Where a server has them.
const PATH: &str = "/cox/program";
/// No program is larger.
const MAX_SIZE: u64 = 2 << 30;
/// From one server.
const FETCH_TIMEOUT: Duration = Duration::from_secs(600);
const CHUNK: usize = 256 << 10;

/// What a program is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// SHA-256 in hexadecimal digits.
    pub(super) digest: String,
    pub(super) size: u64,
}

impl Identity {
    pub(super) async fn of(path: PathBuf) -> Result<Identity> {
        tokio::task::spawn_blocking(move || identify(&path)).await?
    }
}

fn identify(path: &Path) -> Result<Identity> {
    let mut file = fs::File::open(path).with_context(|| path.display().to_string())?;
    let (mut hash, mut size, mut chunk) = (Hash::new(&SHA256), 0, vec![0; CHUNK]);
    loop {
        let count = file.read(&mut chunk).with_context(|| path.display().to_string())?;
        if count == 0 {
            return Ok(Identity { digest: digits(hash), size });
        }
        hash.update(&chunk[..count]);
        size += count as u64;
        if size > MAX_SIZE {
            bail!("{} is larger than {MAX_SIZE} bytes", path.display());
        }
    }
}

fn digits(hash: Hash) -> String {
    api::hex::encode(hash.finish())
}

/// Lays a program out for others, and nothing else. What is laid out is what its name says, whatever becomes of the file.
pub(super) async fn lay_out(options: &Options, binary: &Path) -> Result<Identity> {
    clear(options)?;
    let dir = options.programs_dir();
    private_dir(&dir)?;
    let copy = dir.join("new");
    fs::copy(binary, &copy).with_context(|| format!("copying {}", binary.display()))?;
    let identity = Identity::of(copy.clone()).await?;
    fs::rename(&copy, dir.join(&identity.digest)).with_context(|| copy.display().to_string())?;
    Ok(identity)
}

/// Nothing is laid out any more.
pub(super) fn clear(options: &Options) -> Result<()> {
    let dir = options.programs_dir();
    match fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| dir.display().to_string())
        }
        _ => Ok(()),
    }
}

/// Where a machine puts a program that it was told to run.
pub(super) fn fetched(options: &Options) -> PathBuf {
    options.data_dir.join("upgrade.program")
}

/// Gets a program from the first server that has it. What is there afterwards is that program, and whole.
pub(super) async fn fetch(servers: &[Client], identity: &Identity, to: &Path) -> Result<()> {
    if identity.size > MAX_SIZE {
        bail!("a program of {} bytes is too large", identity.size);
    }
    let mut failed = anyhow!("no server is known");
    for server in servers {
        match tokio::time::timeout(FETCH_TIMEOUT, fetch_from(server, identity, to)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = anyhow!("the server took longer than {FETCH_TIMEOUT:?}"),
        }
    }
    Err(failed.context("fetching the program from the cluster's servers"))
}

async fn fetch_from(server: &Client, identity: &Identity, to: &Path) -> Result<()> {
    let request = http::Request::get(format!("{PATH}/{}", identity.digest)).body(Bytes::new())?;
    let mut body = server.send_checked(request).await?.into_body();
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o700).open(to);
    let mut file = tokio::fs::File::from_std(file.with_context(|| to.display().to_string())?);
    let (mut hash, mut size) = (Hash::new(&SHA256), 0);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| anyhow!("{error}"))?.into_data() else { continue };
        size += data.len() as u64;
        if size > identity.size {
            bail!("the server sends more than the {} bytes of the program", identity.size);
        }
        hash.update(&data);
        file.write_all(&data).await.with_context(|| to.display().to_string())?;
    }
    file.flush().await?;
    file.sync_all().await.with_context(|| to.display().to_string())?;
    if digits(hash) != identity.digest {
        bail!("what the server sends is another program than the one that was ordered");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A server that answers every request with this.
    fn server(answer: Option<&'static [u8]>) -> Client {
        use http_body_util::Full;
        let handler: client::Handler = Arc::new(move |_| {
            Box::pin(async move {
                let status = if answer.is_some() { 200 } else { 404 };
                let body = Full::new(Bytes::from_static(answer.unwrap_or(b"{}")));
                let body = body.map_err(|never| match never {}).boxed_unsync();
                http::Response::builder().status(status).body(body).unwrap()
            })
        });
        Client::in_process(handler, api::UserInfo::default())
    }

    #[tokio::test]
    async fn security_a_machine_takes_no_program_but_the_one_that_was_ordered() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "c".into() };
        let binary = dir.path().join("binary");
        fs::write(&binary, "program").unwrap();
        let identity = lay_out(&options, &binary).await.unwrap();
        assert_eq!(identity.size, 7);
        assert_eq!(fs::read(options.programs_dir().join(&identity.digest)).unwrap(), b"program");
        // Another one takes its place.
        fs::write(&binary, "another").unwrap();
        let other = lay_out(&options, &binary).await.unwrap();
        assert_eq!(fs::read_dir(options.programs_dir()).unwrap().count(), 1);

        let to = fetched(&options);
        let answers: [(Option<&'static [u8]>, Option<&str>); 5] = [
            (Some(b"program"), None),
            (Some(b"progran"), Some("another program")),
            (Some(b"prog"), Some("another program")),
            (Some(b"program and more"), Some("more than the 7 bytes")),
            (None, Some("fetching the program")),
        ];
        for (answer, expected) in answers {
            let fetched = fetch(&[server(answer)], &identity, &to).await.map_err(|error| format!("{error:#}"));
            match expected {
                None => assert_eq!(fetched, Ok(())),
                Some(expected) => assert!(fetched.clone().unwrap_err().contains(expected), "{fetched:?}"),
            }
        }
        // The next server may have it.
        fetch(&[server(None), server(Some(b"another"))], &other, &to).await.unwrap();
        assert_eq!(Identity::of(to).await.unwrap(), other);
        clear(&options).unwrap();
        clear(&options).unwrap();
        assert!(!options.programs_dir().exists());
    }
}
