//! Delegation: the plug-in that makes the interface asks another one for the addresses.

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::call::Call;
use super::{Handlers, dispatch, host_local};
use crate::error::{CniError, code};
use crate::result::{AddResult, MAX_OUTPUT};

/// The `ipam.type` of a configuration; `None` makes a link without addresses.
pub(super) fn kind(call: &Call) -> Option<&str> {
    call.config["ipam"]["type"].as_str().filter(|kind| !kind.is_empty())
}

pub(super) fn add(call: &Call, kind: &str) -> Result<AddResult, CniError> {
    let value = delegate(call, kind, "ADD")?.unwrap_or(Value::Null);
    let result = AddResult::parse(&value)?;
    match result.ips.is_empty() {
        true => Err(CniError::internal("IPAM plugin returned missing IP config")),
        false => Ok(result),
    }
}

pub(super) fn check(call: &Call, kind: &str) -> Result<(), CniError> {
    delegate(call, kind, "CHECK").map(drop)
}

pub(super) fn del(call: &Call, kind: &str) -> Result<(), CniError> {
    delegate(call, kind, "DEL").map(drop)
}

pub(super) fn gc(call: &Call, kind: &str) -> Result<(), CniError> {
    delegate(call, kind, "GC").map(drop)
}

pub(super) fn status(call: &Call, kind: &str) -> Result<(), CniError> {
    delegate(call, kind, "STATUS").map(drop)
}

fn delegate(call: &Call, kind: &str, command: &str) -> Result<Option<Value>, CniError> {
    if kind.contains('/') {
        return Err(CniError::invalid_config(format!("invalid plugin name: {kind}")));
    }
    let found = call.path.iter().map(|dir| dir.join(kind)).find(|path| path.is_file());
    match (found, ours(kind)) {
        // Our own, whether linked into the directory or not: a function call, not a process.
        (None, Some(handlers)) => dispatch(handlers, command, call),
        (Some(path), Some(handlers)) if is_this_binary(&path) => dispatch(handlers, command, call),
        (Some(path), _) => execute(&path, kind, command, call),
        (None, None) => Err(CniError::new(
            code::INVALID_ENVIRONMENT,
            format!("failed to find plugin {kind:?} in path {:?}", call.path),
            "",
        )),
    }
}

fn ours(kind: &str) -> Option<&'static Handlers> {
    (kind == "host-local").then_some(&host_local::HANDLERS)
}

fn is_this_binary(path: &Path) -> bool {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    identity(path).is_some_and(|found| Some(found) == identity(Path::new("/proc/self/exe")))
}

/// The environment is already that of the call; only the command can differ (DEL after a failed ADD).
fn execute(path: &PathBuf, kind: &str, command: &str, call: &Call) -> Result<Option<Value>, CniError> {
    let failed = |error: std::io::Error| CniError::internal(format!("IPAM plugin {kind:?}: {error}"));
    let mut child = Command::new(path)
        .arg0(kind)
        .env("CNI_COMMAND", command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A plug-in may answer without reading.
        let _ = stdin.write_all(call.config.to_string().as_bytes());
    }
    let mut answer = Vec::new();
    let read = match child.stdout.take() {
        Some(stdout) => stdout.take(MAX_OUTPUT + 1).read_to_end(&mut answer),
        None => Ok(0),
    };
    let is_too_long = answer.len() as u64 > MAX_OUTPUT;
    if is_too_long || read.is_err() {
        // It may have ended by itself.
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    read.map_err(failed)?;
    if is_too_long {
        return Err(failed(std::io::Error::other(format!("more than {MAX_OUTPUT} bytes of output"))));
    }
    let value = serde_json::from_slice::<Value>(&answer).ok();
    if status.success() {
        return Ok(value);
    }
    let error = value.and_then(|value| serde_json::from_value(value).ok());
    Err(error.unwrap_or_else(|| CniError::internal(format!("IPAM plugin {kind:?} failed: {status}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_an_ipam_plug_in_that_answers_without_end_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/usr/bin/yes", dir.path().join("endless")).unwrap();
        let env = |name: &str| match name {
            "CNI_CONTAINERID" => "c1".to_owned(),
            "CNI_NETNS" => "/ns".to_owned(),
            "CNI_IFNAME" => "eth0".to_owned(),
            "CNI_PATH" => dir.path().display().to_string(),
            _ => String::new(),
        };
        let config = r#"{"cniVersion": "1.0.0", "name": "n", "type": "bridge", "ipam": {"type": "endless"}}"#;
        let call = Call::read("ADD", env, config.as_bytes()).unwrap();
        let error = add(&call, "endless").unwrap_err().to_string();
        assert!(error.contains("more than 4194304 bytes"), "{error}");
    }
}
