//! `policy`: tells whoever enforces network policies of a pod's addresses, and waits until the rules for them are there.
//!
//! Last of a list, so that nothing of the pod runs before. An ADD without an answer fails, and the runtime is asked again; a DEL
//! never waits for anybody.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;

use super::call::Call;
use super::{Handlers, nothing};
use crate::error::CniError;
use crate::result::AddResult;

pub(super) const HANDLERS: Handlers =
    Handlers { load: |call| Config::load(call).map(drop), add, check: nothing, del, gc: nothing, status: nothing };

/// How long the other side may take to listen, as after a start of the node, and then to answer.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(20);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
struct Config {
    socket: PathBuf,
}

impl Config {
    fn load(call: &Call) -> Result<Self, CniError> {
        call.config()
    }
}

fn add(call: &Call) -> Result<AddResult, CniError> {
    let config = Config::load(call)?;
    let previous = call.require_previous()?.clone();
    let addresses = addresses_of(&previous);
    // Not a pod's: nothing could select it.
    if !addresses.is_empty() && call.arg("K8S_POD_NAME").is_some() {
        let stream = connect(&config.socket).map_err(CniError::failed("reach the node's network policies"))?;
        announce(call, stream, &addresses).map_err(CniError::failed("have the pod's network policies enforced"))?;
    }
    Ok(previous)
}

fn del(call: &Call) -> Result<(), CniError> {
    let config = Config::load(call)?;
    if let (Ok(stream), Some(_)) = (UnixStream::connect(&config.socket), call.arg("K8S_POD_NAME")) {
        // What is not heard now is found out from the API server.
        let released = call.previous.as_ref().map(addresses_of).unwrap_or_default();
        let _unheard = send(call, &stream, &[], &released);
    }
    Ok(())
}

fn addresses_of(result: &AddResult) -> Vec<IpAddr> {
    result.pod_addresses().map(|address| address.addr).collect()
}

fn connect(socket: &Path) -> std::io::Result<UnixStream> {
    let deadline = Instant::now() + LISTEN_TIMEOUT;
    loop {
        match UnixStream::connect(socket) {
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::sleep(RETRY_INTERVAL),
            stream => return stream,
        }
    }
}

fn announce(call: &Call, stream: UnixStream, addresses: &[IpAddr]) -> std::io::Result<()> {
    send(call, &stream, addresses, &[])?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut answer = String::new();
    match BufReader::new(stream).read_line(&mut answer)? {
        0 => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)),
        _ => Ok(()),
    }
}

fn send(call: &Call, mut stream: &UnixStream, addresses: &[IpAddr], released: &[IpAddr]) -> std::io::Result<()> {
    let arg = |name: &str| call.arg(name).unwrap_or_default().to_owned();
    let line = json!({
        "namespace": arg("K8S_POD_NAMESPACE"),
        "name": arg("K8S_POD_NAME"),
        "uid": arg("K8S_POD_UID"),
        "sandbox": call.container_id,
        "addresses": addresses,
        "released": released,
    });
    stream.write_all(format!("{line}\n").as_bytes())
}
