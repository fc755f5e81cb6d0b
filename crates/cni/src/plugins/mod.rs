//! The plug-ins, and what they share: reading a call from the environment and stdin, answering on stdout.
//!
//! Flow: `argv[0]` -> [`plugin`] -> [`main`] reads the call -> the plug-in's ADD, CHECK, DEL, GC or STATUS -> JSON.

mod bandwidth;
mod bridge;
mod call;
mod firewall;
mod host_local;
mod interface;
mod ipam;
mod loopback;
mod masquerade;
mod policy;
mod portmap;
mod ptp;
mod side;
mod spoofing;
mod tuning;

#[cfg(test)]
mod attach_tests;

use std::io::{Read, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::error::{CniError, code};
use crate::result::{AddResult, VERSIONS, version_at_least};
use call::Call;

/// What a plug-in does for each command.
struct Handlers {
    /// Reads the configuration and checks it, and touches nothing.
    load: fn(&Call) -> Result<(), CniError>,
    add: fn(&Call) -> Result<AddResult, CniError>,
    check: fn(&Call) -> Result<(), CniError>,
    del: fn(&Call) -> Result<(), CniError>,
    gc: fn(&Call) -> Result<(), CniError>,
    status: fn(&Call) -> Result<(), CniError>,
}

/// A plug-in of ours.
pub struct Plugin {
    pub name: &'static str,
    handlers: Handlers,
}

/// Links with these names to the binary make a CNI bin directory.
pub const PLUGINS: &[Plugin] = &[
    Plugin { name: "bandwidth", handlers: bandwidth::HANDLERS },
    Plugin { name: "bridge", handlers: bridge::HANDLERS },
    Plugin { name: "firewall", handlers: firewall::HANDLERS },
    Plugin { name: "host-local", handlers: host_local::HANDLERS },
    Plugin { name: "loopback", handlers: loopback::HANDLERS },
    Plugin { name: "policy", handlers: policy::HANDLERS },
    Plugin { name: "portmap", handlers: portmap::HANDLERS },
    Plugin { name: "ptp", handlers: ptp::HANDLERS },
    Plugin { name: "tuning", handlers: tuning::HANDLERS },
];

/// A plug-in by its `argv[0]` (without directories).
pub fn plugin(name: &str) -> Option<&'static Plugin> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

impl Plugin {
    /// What its process does: answers the call in the environment and on stdin.
    pub fn run(&self) -> ExitCode {
        main(&self.handlers)
    }

    /// What it makes of the configuration of a call, without doing anything about it.
    pub fn read_config(&self, stdin: &[u8]) -> Result<(), CniError> {
        (self.handlers.load)(&Call::read("STATUS", |_| String::new(), stdin)?)
    }
}

/// Nothing to do: for plug-ins that keep no state for a command.
fn nothing(_: &Call) -> Result<(), CniError> {
    Ok(())
}

fn main(handlers: &Handlers) -> ExitCode {
    // Run by hand, a plug-in says what it is, as the standard ones do.
    if std::env::var_os("CNI_COMMAND").is_none() {
        let version = env!("CARGO_PKG_VERSION");
        println!("CNI plugin of cox {version}\nCNI protocol versions supported: {}", VERSIONS.join(", "));
        return ExitCode::SUCCESS;
    }
    let mut stdin = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut stdin);
    let outcome = match read {
        Ok(_) => answer(handlers, &stdin),
        Err(error) => Err(CniError::new(code::IO_FAILURE, "error reading from stdin", error.to_string())),
    };
    let (text, exit) = match outcome {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(value)) => (value.to_string(), ExitCode::SUCCESS),
        Err(mut error) => {
            let version = serde_json::from_slice::<Value>(&stdin).ok();
            let version = version.as_ref().and_then(|v| v["cniVersion"].as_str());
            error.cni_version = Some(version.unwrap_or(VERSIONS[VERSIONS.len() - 1]).to_owned());
            (json!(error).to_string(), ExitCode::FAILURE)
        }
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => exit,
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer(handlers: &Handlers, stdin: &[u8]) -> Result<Option<Value>, CniError> {
    let command = std::env::var("CNI_COMMAND").unwrap_or_default();
    if command == "VERSION" {
        return versions(stdin).map(Some);
    }
    let call = Call::from_process(&command, stdin)?;
    dispatch(handlers, &command, &call)
}

fn dispatch(handlers: &Handlers, command: &str, call: &Call) -> Result<Option<Value>, CniError> {
    let needs = |floor: &str, what: &str| match version_at_least(&call.version, floor) {
        true => Ok(()),
        false => Err(CniError::new(code::INCOMPATIBLE_VERSION, format!("config version does not allow {what}"), "")),
    };
    match command {
        "ADD" => (handlers.add)(call).map(|result| Some(result.to_version(&call.version))),
        "CHECK" => {
            needs("0.4.0", "CHECK")?;
            if call.previous.is_none() {
                return Err(CniError::invalid_config("Required prevResult missing"));
            }
            (handlers.check)(call).map(|()| None)
        }
        "DEL" => (handlers.del)(call).map(|()| None),
        "GC" => {
            needs("1.1.0", "GC")?;
            (handlers.gc)(call).map(|()| None)
        }
        "STATUS" => {
            needs("1.1.0", "STATUS")?;
            (handlers.load)(call)?;
            (handlers.status)(call).map(|()| None)
        }
        other => Err(CniError::new(code::INVALID_ENVIRONMENT, format!("unknown CNI_COMMAND: {other}"), "")),
    }
}

fn versions(stdin: &[u8]) -> Result<Value, CniError> {
    let asked: Value = serde_json::from_slice(stdin)
        .map_err(|error| CniError::new(code::DECODING_FAILURE, "error unmarshall network config", error.to_string()))?;
    let version = asked["cniVersion"].as_str().unwrap_or(VERSIONS[VERSIONS.len() - 1]);
    Ok(json!({"cniVersion": version, "supportedVersions": VERSIONS}))
}
