//! Tracked UDP flows. The kernel keeps sending a client's packets where the first one went, so a flow that leads elsewhere
//! than it should must be forgotten before the client is served.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::Socket;
use crate::message::{Request, attributes, read_ip};

const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
/// The netfilter header after netlink's: family, version, resource.
const FAMILY_HEADER: usize = 4;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const UDP: u8 = 17;

#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Where the client sends to.
    pub destination: SocketAddr,
    /// Who answers.
    pub endpoint: SocketAddr,
    /// The attribute as the kernel gave it, to name the flow with.
    original: Vec<u8>,
}

impl Socket {
    /// On a socket of [`Socket::open_netfilter`].
    pub fn udp_flows(&self, v6: bool) -> io::Result<Vec<Flow>> {
        let answers = self.dump(|| Request::new(GET, 0).body(&header(v6)))?;
        Ok(answers.iter().filter_map(|answer| Flow::parse(answer.get(FAMILY_HEADER..)?)).collect())
    }

    /// On a socket of [`Socket::open_netfilter`]. One that has expired meanwhile is forgotten already.
    pub fn forget(&self, flow: &Flow) -> io::Result<()> {
        let request = Request::new(DELETE, 0).body(&header(flow.destination.is_ipv6()));
        match self.change(request.nest(TUPLE_ORIGINAL, |request| request.body(&flow.original))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

impl Flow {
    pub(crate) fn parse(answer: &[u8]) -> Option<Self> {
        let tuple = |wanted: u16| attributes(answer).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
        let original = tuple(TUPLE_ORIGINAL)?;
        let (_, destination) = ends(original)?;
        let (endpoint, _) = ends(tuple(TUPLE_REPLY)?)?;
        Some(Self { destination, endpoint, original: original.to_vec() })
    }
}

/// Source and destination of a UDP tuple: addresses in one attribute, protocol and ports in another.
fn ends(tuple: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let nested = |wanted: u16| attributes(tuple).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let (addresses, protocol) = (nested(1)?, nested(2)?);
    let addr = |kinds: [u16; 2]| -> Option<IpAddr> {
        attributes(addresses).find(|(kind, _)| kinds.contains(kind)).and_then(|(_, value)| read_ip(value))
    };
    let number = |wanted: u16| attributes(protocol).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let port = |wanted: u16| Some(u16::from_be_bytes(number(wanted)?.try_into().ok()?));
    (number(1)? == [UDP]).then_some(())?;
    Some((SocketAddr::new(addr([1, 3])?, port(2)?), SocketAddr::new(addr([2, 4])?, port(3)?)))
}

fn header(v6: bool) -> [u8; FAMILY_HEADER] {
    [(if v6 { libc::AF_INET6 } else { libc::AF_INET }) as u8, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_has_a_destination_and_an_endpoint() {
        let tuple = |kind, source: [u8; 4], destination: [u8; 4], protocol: u8, ports: [u16; 2]| {
            let request = Request::new(0, 0).nest(kind, |request| {
                request.nest(1, |r| r.attr(1, &source).attr(2, &destination)).nest(2, |r| {
                    r.attr(1, &[protocol]).attr(2, &ports[0].to_be_bytes()).attr(3, &ports[1].to_be_bytes())
                })
            });
            request.finish(0).split_off(crate::message::HEADER)
        };
        let flow = |protocol| {
            let sent = tuple(TUPLE_ORIGINAL, [192, 0, 2, 2], [192, 0, 2, 1], protocol, [40000, 8080]);
            let answered = tuple(TUPLE_REPLY, [10, 42, 0, 2], [192, 0, 2, 2], protocol, [53, 40000]);
            Flow::parse(&[sent, answered].concat())
        };
        let known = flow(UDP).unwrap();
        assert_eq!(known.destination, "192.0.2.1:8080".parse().unwrap());
        assert_eq!(known.endpoint, "10.42.0.2:53".parse().unwrap());
        assert_eq!(flow(6), None);
        assert_eq!(Flow::parse(&[4, 0]), None);
    }
}
