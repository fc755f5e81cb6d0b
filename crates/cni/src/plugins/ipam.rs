//! Delegation: the plug-in that makes the interface asks another one for the addresses.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::call::Call;
use super::{Handlers, dispatch, host_local};
use crate::error::{CniError, code};
use crate::result::AddResult;

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
    let output = child.wait_with_output().map_err(failed)?;
    let value = serde_json::from_slice::<Value>(&output.stdout).ok();
    if output.status.success() {
        return Ok(value);
    }
    let error = value.and_then(|value| serde_json::from_value(value).ok());
    Err(error.unwrap_or_else(|| CniError::internal(format!("IPAM plugin {kind:?} failed: {}", output.status))))
}
