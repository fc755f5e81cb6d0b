//! `firewall`: lets a pod's packets through a host firewall that drops forwarded traffic by default.
//!
//! Done with `iptables`, on purpose: an accept in a table of our own cannot overrule the drop of another one, so the rules
//! must stand in the very chain that drops. The chains are those of the standard plug-in: `CNI-FORWARD`, and `CNI-ADMIN`
//! for the operator's own exceptions.

use std::process::Command;

use serde::Deserialize;

use super::call::Call;
use super::{Handlers, nothing};
use crate::error::{CniError, code};
use crate::result::AddResult;
use api::cidr::Cidr;

/// Pods are reached from their own bridge, and from no other.
const SAME_BRIDGE: &str = "same-bridge";

pub(super) const HANDLERS: Handlers =
    Handlers { load: |call| Config::load(call).map(drop), add, check, del, gc: nothing, status: nothing };

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    backend: String,
    iptables_admin_chain_name: String,
    ingress_policy: String,
}

impl Config {
    fn load(call: &Call) -> Result<Self, CniError> {
        let mut config: Self = call.config()?;
        if !matches!(config.backend.as_str(), "" | "iptables") {
            return Err(CniError::new(
                code::UNSUPPORTED_FIELD,
                format!("unrecognized firewall backend {:?}", config.backend),
                "",
            ));
        }
        if !matches!(config.ingress_policy.as_str(), "" | "open" | SAME_BRIDGE) {
            return Err(CniError::new(
                code::UNSUPPORTED_FIELD,
                format!("unsupported ingress policy: {:?}", config.ingress_policy),
                "",
            ));
        }
        if config.iptables_admin_chain_name.is_empty() {
            config.iptables_admin_chain_name = "CNI-ADMIN".into();
        }
        Ok(config)
    }
}

fn add(call: &Call) -> Result<AddResult, CniError> {
    let config = Config::load(call)?;
    let previous = call.require_previous()?.clone();
    for pod in previous.pod_addresses() {
        for rule in base_rules(&config.iptables_admin_chain_name) {
            ensure(pod.is_v6(), &rule)?;
        }
        for rule in pod_rules(pod) {
            ensure(pod.is_v6(), &rule)?;
        }
        for rule in isolation(&config, &previous)? {
            ensure(pod.is_v6(), &rule)?;
        }
    }
    Ok(previous)
}

fn check(call: &Call) -> Result<(), CniError> {
    let config = Config::load(call)?;
    let previous = call.require_previous()?;
    for pod in previous.pod_addresses() {
        for rule in pod_rules(pod).into_iter().chain(isolation(&config, previous)?) {
            if !is_present(pod.is_v6(), &rule) {
                return Err(CniError::internal(format!("firewall rule for {} is missing", pod.addr)));
            }
        }
    }
    Ok(())
}

fn del(call: &Call) -> Result<(), CniError> {
    Config::load(call)?;
    // Before 0.4.0 DEL gets no result: the rules stay until the address is used again, as with the standard plug-in.
    for pod in call.previous.iter().flat_map(|previous| previous.pod_addresses()) {
        for rule in pod_rules(pod) {
            if is_present(pod.is_v6(), &rule) {
                iptables(pod.is_v6(), "-D", &rule).map_err(CniError::failed("remove firewall rules"))?;
            }
        }
    }
    Ok(())
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A chain and a rule in it.
fn base_rules(admin: &str) -> Vec<Vec<String>> {
    vec![
        words("FORWARD -m comment --comment cni-forward -j CNI-FORWARD"),
        words(&format!("CNI-FORWARD -m comment --comment cni-admin -j {admin}")),
    ]
}

fn pod_rules(pod: Cidr) -> Vec<Vec<String>> {
    let host = Cidr::host(pod.addr);
    vec![
        words(&format!("CNI-FORWARD -d {host} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")),
        words(&format!("CNI-FORWARD -s {host} -j ACCEPT")),
    ]
}

/// What leaves a bridge for another interface (stage 1) must not be another bridge of this kind (stage 2). The rules belong to
/// the bridge and stay with it.
fn isolation(config: &Config, previous: &AddResult) -> Result<Vec<Vec<String>>, CniError> {
    if config.ingress_policy != SAME_BRIDGE {
        return Ok(Vec::new());
    }
    let missing = || CniError::invalid_config("interface needs to be set for ingress policy \"same-bridge\"");
    let bridge = &previous.interfaces.first().filter(|first| !first.name.is_empty()).ok_or_else(missing)?.name;
    Ok(vec![
        words("FORWARD -j CNI-ISOLATION-STAGE-1"),
        words(&format!("CNI-ISOLATION-STAGE-1 -i {bridge} ! -o {bridge} -j CNI-ISOLATION-STAGE-2")),
        words(&format!("CNI-ISOLATION-STAGE-2 -o {bridge} -j DROP")),
    ])
}

fn ensure(v6: bool, rule: &[String]) -> Result<(), CniError> {
    let failed = CniError::failed::<Refusal>;
    for chain in [rule.first(), rule.last()].into_iter().flatten() {
        if !matches!(chain.as_str(), "FORWARD" | "ACCEPT" | "DROP") {
            // Fails when it is there: what counts is that the rule below can be added.
            let _ = iptables(v6, "-N", std::slice::from_ref(chain));
        }
    }
    match is_present(v6, rule) {
        true => Ok(()),
        // The jump goes first: behind somebody's drop it would never be reached.
        false if rule.first().is_some_and(|chain| chain == "FORWARD") => {
            iptables(v6, "-I", rule).map_err(failed("add firewall rules"))
        }
        false => iptables(v6, "-A", rule).map_err(failed("add firewall rules")),
    }
}

fn is_present(v6: bool, rule: &[String]) -> bool {
    iptables(v6, "-C", rule).is_ok()
}

/// Why iptables did not do it.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{program}: {source}")]
    NotStarted { program: &'static str, source: std::io::Error },
    /// In its own words.
    #[error("{0}")]
    Said(String),
}

fn iptables(v6: bool, action: &str, rule: &[String]) -> Result<(), Refusal> {
    let program = if v6 { "ip6tables" } else { "iptables" };
    let output = Command::new(program)
        .args(["-w", "5", action])
        .args(rule)
        .output()
        .map_err(|source| Refusal::NotStarted { program, source })?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Refusal::Said(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}
