//! `loopback`: brings `lo` up in the pod.

use super::call::Call;
use super::interface::{describe, find, open_netns};
use super::{Handlers, nothing};
use crate::error::CniError;
use crate::result::{AddResult, IpConfig};

pub(super) const HANDLERS: Handlers = Handlers { load: nothing, add, check, del, gc: nothing, status: nothing };

fn add(call: &Call) -> Result<AddResult, CniError> {
    let socket = open_netns(call)?.socket().map_err(CniError::failed("open a netlink socket"))?;
    let lo = find(&socket, "lo")?;
    socket.set_up(lo.index).map_err(CniError::failed("set \"lo\" up"))?;
    if let Some(previous) = &call.previous {
        return Ok(previous.clone());
    }
    let addresses = socket.addresses_of(lo.index).map_err(CniError::failed("list addresses"))?;
    let mut result = AddResult { interfaces: vec![describe(&lo, &call.netns)], ..AddResult::default() };
    result.ips.extend(addresses.iter().map(|address| IpConfig {
        interface: Some(0),
        address: address.cidr,
        gateway: None,
    }));
    Ok(result)
}

fn check(call: &Call) -> Result<(), CniError> {
    let socket = open_netns(call)?.socket().map_err(CniError::failed("open a netlink socket"))?;
    match find(&socket, "lo")?.is_up() {
        true => Ok(()),
        false => Err(CniError::internal("loopback interface is down")),
    }
}

fn del(call: &Call) -> Result<(), CniError> {
    // The namespace goes next and takes `lo` with it; when it is gone already there is nothing to do.
    let Ok(netns) = open_netns(call) else {
        return Ok(());
    };
    let Ok(socket) = netns.socket() else {
        return Ok(());
    };
    let lo = find(&socket, "lo")?;
    socket.set_down(lo.index).map_err(CniError::failed("set \"lo\" down"))
}
