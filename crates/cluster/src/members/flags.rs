//! What `cox up` can be told about the members, and what follows from it.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, bail};

use crate::options::Options;
use crate::pki::Pki;
use crate::shape::Flags;

/// Where members take requests of clients, and of each other.
const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
pub(crate) const PORTS: [u16; 2] = [CLIENT_PORT, PEER_PORT];

pub(super) fn client_url(address: IpAddr) -> String {
    format!("https://{}", SocketAddr::from((address, CLIENT_PORT)))
}

pub(super) fn peer_url(address: IpAddr) -> String {
    format!("https://{}", SocketAddr::from((address, PEER_PORT)))
}

/// Fills in what follows from `--ha`: the way to etcd, this server's member first.
pub(crate) fn completed(mut flags: Flags, options: &Options) -> Result<Flags> {
    if !flags.ha.ha {
        return Ok(flags);
    }
    let shape = flags.shape()?;
    if let Some(address) = shape.own_address {
        bail!("no other machine could reach {address}: give an address of this machine with --node-ip");
    }
    let own = client_url(shape.node_ip()?);
    let pki = Pki::open(&std::path::absolute(options.pki_dir())?);
    flags.etcd.etcd_cafile = Some(pki.certificate("etcd-ca"));
    flags.etcd.etcd_certfile = Some(pki.certificate("etcd-client"));
    flags.etcd.etcd_keyfile = Some(pki.key("etcd-client"));
    flags.etcd.etcd_servers.retain(|server| *server != own);
    flags.etcd.etcd_servers.insert(0, own);
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::shape::Machine;

    #[test]
    fn the_way_to_etcd_follows_from_the_address() {
        let options = Options { data_dir: "/d".into(), run_dir: "/r".into(), name: "cox".into() };
        let machine =
            Machine { node_name: Some("n".into()), node_ip: vec!["192.0.2.2".parse().unwrap()], ..Machine::default() };
        let mut flags = Flags { machine, ..Flags::default() };
        assert_eq!(completed(flags.clone(), &options).unwrap(), flags, "not without --ha");
        flags.ha.ha = true;
        flags.etcd.etcd_servers = vec!["https://192.0.2.1:2379".into(), "https://192.0.2.2:2379".into()];
        let etcd = completed(flags, &options).unwrap().etcd;
        assert_eq!(etcd.etcd_servers, ["https://192.0.2.2:2379", "https://192.0.2.1:2379"]);
        assert_eq!(etcd.etcd_cafile.unwrap(), PathBuf::from("/d/pki/etcd-ca.crt"));
        assert_eq!(peer_url("2001:db8::1".parse().unwrap()), "https://[2001:db8::1]:2380");
    }
}
