//! What a server signs for itself and for the nodes beside it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;

use crate::ca_rotation;
use crate::kubeconfig::{self, Access};
use crate::nodes::{self, Network};
use crate::options::Options;
use crate::pki::Pki;
use crate::shape::Shape;

/// Makes what is missing, signs the rest anew, and puts it into the administrator's kubeconfig.
pub(crate) fn prepare_keys(options: &Options, shape: &Shape, network: &Network) -> Result<Pki> {
    ca_rotation::complete(&options.pki_dir())?;
    let node = &shape.node_name;
    let (hosts, addresses) = certified(shape, network)?;
    let pki = Pki::prepare(&options.pki_dir(), shape.certificate_validity, node, &hosts, &addresses)?;
    if shape.ha.ha {
        pki.prepare_member(node, &addresses)?;
    }
    Access::admin(&options.name, &own_url(shape), &pki)?.merge_into(&options.admin_kubeconfig())?;
    Ok(pki)
}

/// The names and addresses that the certificate of this API server is for.
pub(crate) fn certified(shape: &Shape, network: &Network) -> Result<(Vec<String>, Vec<IpAddr>)> {
    let (domain, node) = (&shape.cluster_domain, &shape.node_name);
    let mut hosts = vec![
        "localhost".to_owned(),
        node.to_owned(),
        "kubernetes".to_owned(),
        "kubernetes.default".to_owned(),
        "kubernetes.default.svc".to_owned(),
        format!("kubernetes.default.svc.{domain}"),
    ];
    let mut addresses = vec![Ipv4Addr::LOCALHOST.into(), shape.service_address(1)?];
    addresses.extend(network.gateways()?.iter().map(|gateway| gateway.addr));
    if shape.node_ips.iter().any(IpAddr::is_ipv6) {
        addresses.push(Ipv6Addr::LOCALHOST.into());
    }
    addresses.extend(&shape.node_ips);
    for name in &shape.names {
        match name.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => hosts.push(name.clone()),
        }
    }
    Ok((hosts, addresses))
}

/// How this machine reaches its own server.
pub(crate) fn own_url(shape: &Shape) -> String {
    let is_v6 = shape.node_ips.first().is_some_and(IpAddr::is_ipv6);
    let loopback = if is_v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    url(loopback, shape.secure_port)
}

pub(crate) fn url(address: IpAddr, port: u16) -> String {
    format!("https://{}", SocketAddr::from((address, port)))
}

/// Signs everything anew that the cluster's authorities have signed on this machine.
pub(crate) fn renew(options: &Options, shape: &Shape) -> Result<()> {
    let network = Network::load(options)?;
    let pki = prepare_keys(options, shape, &network)?;
    for record in nodes::all(options)? {
        if record.options(options).pki_dir().try_exists()? {
            nodes::prepare_keys(options, &network, &pki, &record, &network.server_url(shape.secure_port)?)?;
        }
    }
    let access = Access::admin(&options.name, "", &pki)?;
    for (file, error) in kubeconfig::renew_user_files(options, &access)? {
        tracing::warn!("{} has the old certificate: {error:#}", file.display());
    }
    Ok(())
}
