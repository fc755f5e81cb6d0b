//! Where an S3 endpoint is, and who asks there.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::sign::Credentials;
use crate::path_value::{named, path_or_empty};

const MAX_BYTES: u64 = 64 << 10;
const USUAL_REGION: &str = "us-east-1";

#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct S3Flags {
    /// S3 endpoint for backups of the store (https://host), instead of a directory; an empty value turns them off
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_s3_endpoint: Option<String>,
    /// Its bucket
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_s3_bucket: Option<String>,
    /// Prefix of the names of backups, such as clusters/a/ (default: none)
    #[arg(long, value_name = "PREFIX")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_s3_prefix: Option<String>,
    /// Region of the endpoint (default: us-east-1)
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_s3_region: Option<String>,
    /// File with the credentials in AWS format (aws_access_key_id = …, aws_secret_access_key = …); only root may read it
    /// (default: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the environment)
    #[arg(long, value_name = "FILE", value_parser = path_or_empty())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_s3_credentials: Option<PathBuf>,
    /// File with the CA of the endpoint (default: the system's)
    #[arg(long, value_name = "FILE", value_parser = path_or_empty())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_s3_ca: Option<PathBuf>,
    /// Whether the bucket is part of the host name instead of the path (default: false)
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_s3_virtual_host: Option<bool>,
}

/// A bucket, and how it is reached.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Place {
    /// Scheme, host and port.
    pub(super) server: String,
    pub(super) host: String,
    /// What stands before a key in the path.
    pub(super) path: String,
    pub(super) region: String,
    pub(crate) prefix: String,
    pub(super) authority: Option<PathBuf>,
    pub(super) credentials: Option<PathBuf>,
    /// For people.
    pub(super) name: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl S3Flags {
    pub(crate) fn over(self, old: S3Flags) -> S3Flags {
        S3Flags {
            backup_s3_endpoint: self.backup_s3_endpoint.or(old.backup_s3_endpoint),
            backup_s3_bucket: self.backup_s3_bucket.or(old.backup_s3_bucket),
            backup_s3_prefix: self.backup_s3_prefix.or(old.backup_s3_prefix),
            backup_s3_region: self.backup_s3_region.or(old.backup_s3_region),
            backup_s3_credentials: self.backup_s3_credentials.or(old.backup_s3_credentials),
            backup_s3_ca: self.backup_s3_ca.or(old.backup_s3_ca),
            backup_s3_virtual_host: self.backup_s3_virtual_host.or(old.backup_s3_virtual_host),
        }
    }

    /// None where no endpoint is named.
    pub(crate) fn place(&self) -> Result<Option<Place>> {
        let Some(endpoint) = self.backup_s3_endpoint.as_deref() else {
            if *self != S3Flags::default() {
                bail!("flags that begin with --backup-s3 are of no use without --backup-s3-endpoint");
            }
            return Ok(None);
        };
        // One that is empty ends what was begun.
        if endpoint.is_empty() {
            return Ok(None);
        }
        // Credentials that somebody put there are not told to a log.
        let shown = endpoint.rsplit_once('@').map_or(endpoint.to_owned(), |(_, host)| format!("…@{host}"));
        let wrong = |why: &str| anyhow::anyhow!("--backup-s3-endpoint={shown}: {why}");
        let (scheme, rest) = endpoint.split_once("://").ok_or_else(|| wrong("must start with http:// or https://"))?;
        if !["http", "https"].contains(&scheme) {
            return Err(wrong("must start with http:// or https://"));
        }
        let host = rest.trim_end_matches('/');
        if host.is_empty() || host.contains(['/', '@', '?', '#', ' ']) {
            return Err(wrong("is a host and a port at most: bucket, prefix and credentials have flags of their own"));
        }
        let bucket = self.backup_s3_bucket.as_deref().unwrap_or_default();
        let is_usual = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte);
        if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(is_usual) {
            bail!("--backup-s3-bucket={bucket}: a bucket has 3 to 63 lower-case letters, digits, dots and hyphens");
        }
        let prefix = self.backup_s3_prefix.clone().unwrap_or_default();
        if prefix.starts_with('/') || prefix.len() > 512 {
            bail!("--backup-s3-prefix={prefix}: is short, and does not begin with a slash");
        }
        let (host, path) = match self.backup_s3_virtual_host.unwrap_or(false) {
            true => (format!("{bucket}.{host}"), "/".to_owned()),
            false => (host.to_owned(), format!("/{bucket}/")),
        };
        // The port is said unless it is the usual one, in the address too: what is signed is what HTTP/2 says of it.
        let usual_port = if scheme == "https" { ":443" } else { ":80" };
        let host = host.strip_suffix(usual_port).unwrap_or(&host).to_owned();
        Ok(Some(Place {
            server: format!("{scheme}://{host}"),
            host,
            path,
            region: self.backup_s3_region.clone().unwrap_or_else(|| USUAL_REGION.to_owned()),
            name: format!("{endpoint}/{bucket}/{prefix}"),
            prefix,
            authority: named(&self.backup_s3_ca).map(Path::to_owned),
            credentials: named(&self.backup_s3_credentials).map(Path::to_owned),
        }))
    }
}

impl Place {
    /// Read anew each time: they may be exchanged while the cluster runs.
    pub(super) fn credentials(&self) -> Result<Credentials> {
        match &self.credentials {
            Some(path) => from_file(path),
            None => from_environment(|name| std::env::var(name).ok()),
        }
    }
}

fn from_environment(get: impl Fn(&str) -> Option<String>) -> Result<Credentials> {
    let get = |name: &str| get(name).filter(|value| !value.is_empty());
    let (access, secret) = (get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY"));
    let (access_key, secret_key) = access.zip(secret).context(
        "there are no credentials: name a file with --backup-s3-credentials, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    )?;
    Ok(Credentials { access_key, secret_key, session_token: get("AWS_SESSION_TOKEN") })
}

fn from_file(path: &Path) -> Result<Credentials> {
    let metadata = std::fs::metadata(path).with_context(|| path.display().to_string())?;
    if metadata.mode() & 0o077 != 0 {
        bail!("{} can be read by others than its owner: chmod 600", path.display());
    }
    if metadata.len() > MAX_BYTES {
        bail!("{} is longer than {MAX_BYTES} bytes", path.display());
    }
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    parse(&text).with_context(|| path.display().to_string())
}

/// The section `default`, or what stands before any.
fn parse(text: &str) -> Result<Credentials> {
    let mut section = "default".to_owned();
    let mut found = std::collections::BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_owned();
        } else if section == "default" {
            // What a line says is not told: it may be a key.
            let (name, value) = line.split_once('=').context("a line that is not name = value")?;
            found.insert(name.trim().to_lowercase(), value.trim().to_owned());
        }
    }
    let mut take = |name: &str| found.remove(name).filter(|value| !value.is_empty());
    Ok(Credentials {
        access_key: take("aws_access_key_id").context("there is no aws_access_key_id")?,
        secret_key: take("aws_secret_access_key").context("there is no aws_secret_access_key")?,
        session_token: take("aws_session_token"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn flags(endpoint: &str) -> S3Flags {
        let (endpoint, bucket) = (Some(endpoint.to_owned()), Some("copies".to_owned()));
        S3Flags { backup_s3_endpoint: endpoint, backup_s3_bucket: bucket, ..S3Flags::default() }
    }

    #[test]
    fn places_are_checked() {
        assert_eq!(S3Flags::default().place().unwrap(), None);
        assert_eq!(flags("").place().unwrap(), None, "no more copies");
        let place = flags("https://s3.example:9000/").place().unwrap().unwrap();
        assert_eq!((place.server.as_str(), place.path.as_str()), ("https://s3.example:9000", "/copies/"));
        assert_eq!((place.host.as_str(), place.region.as_str()), ("s3.example:9000", "us-east-1"));
        let by_host = S3Flags { backup_s3_virtual_host: Some(true), ..flags("https://s3.example:443") };
        let place = by_host.place().unwrap().unwrap();
        assert_eq!((place.server.as_str(), place.path.as_str()), ("https://copies.s3.example", "/"));
        assert_eq!(place.host, "copies.s3.example");
        for (wrong, why) in [
            (S3Flags { backup_s3_endpoint: None, ..flags("") }, "without --backup-s3-endpoint"),
            (S3Flags { backup_s3_bucket: None, ..flags("https://h") }, "lower-case letters"),
            (flags("s3.example"), "must start with"),
            (flags("ftp://s3.example"), "must start with"),
            (flags("https://key:secret@s3.example"), "have flags of their own"),
            (flags("https://s3.example/copies"), "have flags of their own"),
            (S3Flags { backup_s3_bucket: Some("A/b".into()), ..flags("https://h") }, "lower-case letters"),
            (S3Flags { backup_s3_prefix: Some("/a".into()), ..flags("https://h") }, "begin with a slash"),
        ] {
            let error = wrong.place().unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("key:secret"), "{error}");
        }
    }

    #[test]
    fn security_credentials_come_from_private_files_or_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        let text = "# mine\n[other]\naws_access_key_id = x\n[default]\naws_access_key_id = key\naws_secret_access_key=se=cret\n";
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(from_file(&path).unwrap_err().to_string().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let found = from_file(&path).unwrap();
        assert_eq!((found.access_key.as_str(), found.secret_key.as_str()), ("key", "se=cret"));
        for wrong in ["aws_access_key_id = k\n", "what-is-this-secret\n"] {
            let error = format!("{:#}", parse(wrong).unwrap_err());
            assert!(!error.contains("what-is-this-secret"), "{error}");
        }
        let all = |name: &str| Some(format!("{name}-value"));
        assert_eq!(from_environment(all).unwrap().session_token.as_deref(), Some("AWS_SESSION_TOKEN-value"));
        assert!(from_environment(|_| None).unwrap_err().to_string().contains("no credentials"));
    }
}
