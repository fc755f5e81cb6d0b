//! Corefiles: what people tell CoreDNS, read by the same rules. Pure.
//!
//! Flow: text -> words ([`syntax`]) -> what each server block does ([`directives`]) -> [`crate::plan`], which serves it.
//! Invariant: what is not understood is refused with its line; nothing that is accepted is ignored, but for what has no
//! meaning in this server, and that is one list ([`directives::WITHOUT_EFFECT`]).

mod directives;
mod syntax;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use hickory_proto::rr::Name;

use crate::hosts::Hosts;
use crate::rewrite::Rule;
use crate::settings::{Cache, Forward, Kubernetes, Log, Transfer};
use crate::template::Template;

/// Why a Corefile is not used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("Corefile:{line} - Error during parsing: {message}")]
pub(crate) struct Refusal {
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Refusal {
    fn at(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

/// What a Corefile can refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings<'a> {
    /// The resolvers that `/etc/resolv.conf` stands for.
    pub(crate) resolvers: &'a [SocketAddr],
    /// Addresses that lead back to this server.
    pub(crate) own: &'a [SocketAddr],
    /// What lies beside the Corefile, by name: `/etc/coredns/NAME`.
    pub(crate) files: &'a BTreeMap<String, String>,
}

/// What is done for the names of some zones.
#[derive(Debug, Default)]
pub(crate) struct Server {
    pub(crate) zones: Vec<Name>,
    pub(crate) rewrites: Vec<Rule>,
    pub(crate) templates: Vec<Template>,
    pub(crate) hosts: Option<Hosts>,
    pub(crate) kubernetes: Option<Kubernetes>,
    pub(crate) forwards: Vec<Forward>,
    pub(crate) cache: Option<Cache>,
    pub(crate) log: Option<Log>,
    /// Whether the addresses of an answer take turns.
    pub(crate) rotates: bool,
    /// Zones in whose names the search path of the client's pod is walked for it.
    pub(crate) autopath: Option<Vec<Name>>,
    pub(crate) transfer: Option<Transfer>,
}

/// What a Corefile says, server block by server block.
pub(crate) fn parse(text: &str, surroundings: Surroundings<'_>) -> Result<Vec<Server>, Refusal> {
    let mut servers: Vec<Server> = Vec::new();
    for block in syntax::parse(text)? {
        let line = block.line;
        let server = directives::read(block, surroundings)?;
        if let Some(zone) = server.zones.iter().find(|zone| servers.iter().any(|other| other.zones.contains(zone))) {
            return Err(Refusal::at(line, format!("cannot serve dns://{zone}:53 - it is already defined")));
        }
        servers.push(server);
    }
    match servers.is_empty() {
        true => Err(Refusal::at(1, "there is no server block")),
        false => Ok(servers),
    }
}

/// A name as it is compared: absolute, in lower case.
fn name(text: &str) -> Option<Name> {
    let text = format!("{}.", text.trim_end_matches('.'));
    Some(Name::from_ascii(text).ok()?.to_lowercase())
}

/// A zone: a name, or a range of addresses, which stands for its reverse zone.
fn zone(text: &str) -> Option<Name> {
    let Some((address, prefix)) = text.split_once('/') else { return name(text) };
    let prefix: usize = prefix.parse().ok()?;
    let labels: Vec<String> = match address.parse().ok()? {
        IpAddr::V4(address) if prefix.is_multiple_of(8) && prefix <= 32 => address
            .octets()
            .iter()
            .take(prefix / 8)
            .rev()
            .map(u8::to_string)
            .chain(["in-addr.arpa".to_owned()])
            .collect(),
        IpAddr::V6(address) if prefix.is_multiple_of(4) && prefix <= 128 => {
            let digits = format!("{:032x}", address.to_bits());
            let digits: Vec<String> = digits.chars().take(prefix / 4).map(String::from).collect();
            digits.into_iter().rev().chain(["ip6.arpa".to_owned()]).collect()
        }
        _ => return None,
    };
    name(&labels.join("."))
}
