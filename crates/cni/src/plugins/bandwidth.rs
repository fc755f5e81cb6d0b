//! `bandwidth`: limits what a pod receives and sends (the `bandwidth` capability).
//!
//! What the pod receives leaves the host's end of its veth pair, where a token bucket shapes it. What it sends arrives there;
//! it is led through an `ifb` link, on whose way out a second bucket stands.

use serde::Deserialize;

use super::call::Call;
use super::interface::{describe, find};
use super::{Handlers, nothing};
use crate::error::CniError;
use crate::nft::short_hash;
use crate::result::AddResult;
use netlink::{Link, LinkKind, Socket, TokenBucket};

pub(super) const HANDLERS: Handlers =
    Handlers { load: |call| Limits::load(call).map(drop), add, check, del, gc: nothing, status: nothing };

const LATENCY_MS: u32 = 25;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    #[serde(flatten)]
    limits: Limits,
    runtime_config: RuntimeConfig,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RuntimeConfig {
    bandwidth: Option<Limits>,
}

/// In bits and bits per second, as seen from the pod. Zero is no limit.
#[derive(Clone, Copy, Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Limits {
    ingress_rate: u64,
    ingress_burst: u64,
    egress_rate: u64,
    egress_burst: u64,
}

impl Limits {
    fn load(call: &Call) -> Result<Self, CniError> {
        let config: Config = call.config()?;
        let limits = config.runtime_config.bandwidth.unwrap_or(config.limits);
        for (what, rate, burst) in [
            ("ingress", limits.ingress_rate, limits.ingress_burst),
            ("egress", limits.egress_rate, limits.egress_burst),
        ] {
            if (rate == 0) != (burst == 0) {
                return Err(CniError::invalid_config(format!("if {what} rate or burst is set, both must be set")));
            }
            if burst / 8 >= u64::from(u32::MAX) {
                return Err(CniError::invalid_config(format!("{what} burst cannot be more than 4GB")));
            }
        }
        Ok(limits)
    }
}

fn bucket(rate: u64, burst: u64) -> TokenBucket {
    TokenBucket { bytes_per_second: rate / 8, burst_bytes: (burst / 8) as u32, latency_ms: LATENCY_MS }
}

fn add(call: &Call) -> Result<AddResult, CniError> {
    let limits = Limits::load(call)?;
    let mut result = call.require_previous()?.clone();
    if limits.ingress_rate == 0 && limits.egress_rate == 0 {
        return Ok(result);
    }
    let host = Socket::open().map_err(CniError::failed("open a netlink socket"))?;
    let veth = host_end(&host, &result)?;
    if limits.ingress_rate > 0 {
        host.set_token_bucket(veth.index, bucket(limits.ingress_rate, limits.ingress_burst))
            .map_err(CniError::failed(format!("limit {}", veth.name)))?;
    }
    if limits.egress_rate > 0 {
        let name = ifb_name(call);
        match host.add_link(&name, LinkKind::Ifb, Some(veth.mtu), None) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(CniError::failed(format!("make {name}"))(error));
            }
            _ => {}
        }
        let ifb = find(&host, &name)?;
        let shaped = host
            .set_up(ifb.index)
            .and_then(|()| host.set_token_bucket(ifb.index, bucket(limits.egress_rate, limits.egress_burst)))
            .and_then(|()| host.redirect_ingress(veth.index, ifb.index));
        if let Err(error) = shaped {
            let _ = host.del_link(ifb.index);
            return Err(CniError::failed(format!("limit {} through {name}", veth.name))(error));
        }
        result.interfaces.push(describe(&ifb, ""));
    }
    Ok(result)
}

fn del(call: &Call) -> Result<(), CniError> {
    let host = Socket::open().map_err(CniError::failed("open a netlink socket"))?;
    match host.link(&ifb_name(call)).map_err(CniError::failed("find the ifb link"))? {
        Some(ifb) => host.del_link(ifb.index).map_err(CniError::failed("delete the ifb link")),
        None => Ok(()),
    }
}

fn check(call: &Call) -> Result<(), CniError> {
    let limits = Limits::load(call)?;
    let host = Socket::open().map_err(CniError::failed("open a netlink socket"))?;
    let has_bucket = |link: &Link| host.qdiscs(link.index).is_ok_and(|kinds| kinds.iter().any(|kind| kind == "tbf"));
    if limits.ingress_rate > 0 && !has_bucket(&host_end(&host, call.require_previous()?)?) {
        return Err(CniError::internal("ingress limit is missing"));
    }
    if limits.egress_rate > 0 && !has_bucket(&find(&host, &ifb_name(call))?) {
        return Err(CniError::internal("egress limit is missing"));
    }
    Ok(())
}

/// The interface of the result that is on the host and paired with one in the pod: not the bridge.
fn host_end(host: &Socket, result: &AddResult) -> Result<Link, CniError> {
    result
        .interfaces
        .iter()
        .filter(|interface| interface.sandbox.is_empty())
        .filter_map(|interface| host.link(&interface.name).ok().flatten())
        .find(|link| link.kind == "veth")
        .ok_or_else(|| CniError::internal("no veth interface on the host in prevResult"))
}

fn ifb_name(call: &Call) -> String {
    format!("bwp{}", &short_hash(&[&call.network, &call.container_id, &call.ifname])[..12])
}
