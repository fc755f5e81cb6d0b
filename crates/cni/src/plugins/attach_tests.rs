//! What a pod gets from `bridge` and `ptp`, call by call: recorded, so that no privilege is needed.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use api::cidr::Cidr;
use netlink::{Address, Link, Route, Scope};
use serde_json::{Value, json};

use super::call::Call;
use super::side::{Links, Side};
use super::{bridge, ptp};
use crate::nft;

/// One of two namespaces that remember their links and what was asked, in order.
#[derive(Clone)]
struct Recorded {
    side: &'static str,
    world: Rc<RefCell<World>>,
}

#[derive(Default)]
struct World {
    links: Vec<(&'static str, Link)>,
    addresses: Vec<(&'static str, Address)>,
    calls: Vec<String>,
}

fn sides() -> (Recorded, Recorded) {
    let world = Rc::new(RefCell::new(World::default()));
    (Recorded { side: "node", world: world.clone() }, Recorded { side: "pod", world })
}

impl Recorded {
    fn note(&self, call: impl std::fmt::Display) -> io::Result<()> {
        self.world.borrow_mut().calls.push(format!("{}: {call}", self.side));
        Ok(())
    }

    /// Names that are made up are written `veth…`.
    fn name(&self, index: u32) -> String {
        let world = self.world.borrow();
        let (_, link) = world.links.iter().find(|(_, link)| link.index == index).unwrap();
        shown(&link.name).to_owned()
    }

    fn make(&self, side: &'static str, name: &str, kind: &str) {
        let mut world = self.world.borrow_mut();
        let index = 10 + world.links.len() as u32;
        let mac = [2, 0, 0, 0, 0, index as u8];
        let link = Link { index, name: name.into(), kind: kind.into(), mac, is_operational: true, ..Link::default() };
        world.links.push((side, link));
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.world.borrow_mut().calls)
    }
}

fn shown(name: &str) -> &str {
    if name.starts_with("veth") { "veth…" } else { name }
}

fn route_text(side: &Recorded, route: &Route) -> String {
    let mut text = format!("{}", route.dst);
    if let Some(gateway) = route.gateway {
        text += &format!(" via {gateway}");
    }
    text += &format!(" dev {}", side.name(route.oif.unwrap()));
    if let Some(source) = route.source {
        text += &format!(" src {source}");
    }
    match route.scope {
        Scope::LINK => text + " scope link",
        Scope::HOST => text + " scope host",
        _ => text,
    }
}

impl Links for Recorded {
    fn link(&self, name: &str) -> io::Result<Option<Link>> {
        let world = self.world.borrow();
        let found = world.links.iter().find(|(side, link)| *side == self.side && link.name == name);
        Ok(found.map(|(_, link)| link.clone()))
    }
}

impl Side for Recorded {
    fn link_by_index(&self, index: u32) -> io::Result<Option<Link>> {
        let world = self.world.borrow();
        let found = world.links.iter().find(|(side, link)| *side == self.side && link.index == index);
        Ok(found.map(|(_, link)| link.clone()))
    }

    fn add_bridge(&self, name: &str, vlan_filtering: bool, mtu: Option<u32>) -> io::Result<()> {
        if self.link(name)?.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.make(self.side, name, "bridge");
        let vlans = if vlan_filtering { " with VLANs" } else { "" };
        self.note(format!("bridge {name}{vlans} mtu {}", mtu.unwrap_or_default()))
    }

    fn add_veth(&self, name: &str, peer: &str, mtu: Option<u32>, mac: Option<[u8; 6]>) -> io::Result<()> {
        self.make(self.side, name, "veth");
        self.make("node", peer, "veth");
        let mac = mac.map(|mac| format!(" mac {mac:02x?}")).unwrap_or_default();
        self.note(format!("veth {name} to node's {} mtu {}{mac}", shown(peer), mtu.unwrap_or_default()))
    }

    fn set_up(&self, index: u32) -> io::Result<()> {
        self.note(format!("up {}", self.name(index)))
    }

    fn set_master(&self, index: u32, master: u32) -> io::Result<()> {
        self.note(format!("{} is a port of {}", self.name(index), self.name(master)))
    }

    fn set_mac(&self, index: u32, _mac: [u8; 6]) -> io::Result<()> {
        self.note(format!("set mac of {}", self.name(index)))
    }

    fn set_promisc(&self, index: u32, on: bool) -> io::Result<()> {
        self.note(format!("promisc {} {on}", self.name(index)))
    }

    fn set_hairpin(&self, port: u32, on: bool) -> io::Result<()> {
        self.note(format!("hairpin {} {on}", self.name(port)))
    }

    fn set_isolated(&self, port: u32, on: bool) -> io::Result<()> {
        self.note(format!("isolated {} {on}", self.name(port)))
    }

    fn set_no_link_local_learning(&self, bridge: u32) -> io::Result<()> {
        self.note(format!("{} learns nothing from frames to bridges", self.name(bridge)))
    }

    fn add_port_vlan(&self, port: u32, vlan: u16, native: bool) -> io::Result<()> {
        self.note(format!("vlan {vlan} on {}{}", self.name(port), if native { " native" } else { "" }))
    }

    fn del_port_vlan(&self, port: u32, vlan: u16) -> io::Result<()> {
        self.note(format!("no vlan {vlan} on {}", self.name(port)))
    }

    fn addresses_of(&self, index: u32) -> io::Result<Vec<Address>> {
        let world = self.world.borrow();
        let ours = world.addresses.iter().filter(|(side, address)| *side == self.side && address.index == index);
        Ok(ours.map(|(_, address)| address.clone()).collect())
    }

    fn add_address(&self, index: u32, cidr: Cidr) -> io::Result<()> {
        let address = Address { index, cidr, scope: 0, is_tentative: false, dad_failed: false };
        self.world.borrow_mut().addresses.push((self.side, address));
        self.note(format!("address {cidr} on {}", self.name(index)))
    }

    fn del_address(&self, index: u32, cidr: Cidr) -> io::Result<()> {
        self.note(format!("no address {cidr} on {}", self.name(index)))
    }

    fn routes(&self) -> io::Result<Vec<Route>> {
        Ok(Vec::new())
    }

    fn add_route(&self, route: &Route) -> io::Result<()> {
        self.note(format!("route {}", route_text(self, route)))
    }

    fn replace_route(&self, route: &Route) -> io::Result<()> {
        self.note(format!("route {}", route_text(self, route)))
    }

    fn del_route(&self, route: &Route) -> io::Result<()> {
        self.note(format!("no route {}", route_text(self, route)))
    }

    fn set_sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        let parts: Vec<&str> = name.split('/').map(shown).collect();
        self.note(format!("{} = {value}", parts.join("/")))
    }

    fn apply_rules(&self, transaction: &str) -> Result<(), nft::Error> {
        let elements = transaction.lines().filter(|line| line.starts_with("add element"));
        for line in elements {
            let words: Vec<&str> = line.split(' ').collect();
            let _ = match words[3] {
                "cox-spoofing" if words[4] == "ports" => self.note(format!("guard port: {}", words[11])),
                "cox-spoofing" => self.note(format!("may send as {}", words[8])),
                _ => self.note(format!("masquerade {}", words[6])),
            };
        }
        Ok(())
    }
}

/// An ADD of `plugin` with a lease from ranges of both families.
fn call(data: &std::path::Path, plugin: &str, more: Value) -> Call {
    let mut config = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "type": plugin,
        "ipam": {
            "type": "host-local",
            "dataDir": data,
            "ranges": [[{"subnet": "10.42.1.0/24"}], [{"subnet": "fd42:0:0:1::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        },
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let env = |name: &str| match name {
        "CNI_CONTAINERID" => "one".to_owned(),
        "CNI_NETNS" => "/run/netns/one".to_owned(),
        "CNI_IFNAME" => "eth0".to_owned(),
        _ => String::new(),
    };
    Call::read("ADD", env, config.to_string().as_bytes()).unwrap()
}

#[test]
fn a_pod_on_a_bridge_gets_link_addresses_routes_and_rules() {
    let data = tempfile::tempdir().unwrap();
    let (node, pod) = sides();
    let more = json!({"bridge": "cox0", "isGateway": true, "ipMasq": true, "hairpinMode": true, "mtu": 1450});
    let result = bridge::attach_to(&call(data.path(), "bridge", more), &node, &pod).unwrap();
    let expected = [
        "node: bridge cox0 mtu 1450",
        "node: net/ipv6/conf/cox0/accept_ra = 0",
        "node: up cox0",
        "pod: veth eth0 to node's veth… mtu 1450",
        "node: up veth…",
        "node: net/ipv6/conf/veth…/accept_ra = 0",
        "node: veth… is a port of cox0",
        "node: hairpin veth… true",
        "pod: net/ipv6/conf/eth0/accept_dad = 0",
        "pod: net/ipv4/conf/eth0/arp_notify = 1",
        "pod: net/ipv6/conf/eth0/ndisc_notify = 1",
        "pod: net/ipv6/conf/eth0/accept_ra = 0",
        "pod: net/ipv6/conf/lo/disable_ipv6 = 0",
        "pod: net/ipv6/conf/eth0/disable_ipv6 = 0",
        "pod: net/ipv6/conf/eth0/keep_addr_on_down = 1",
        "pod: address 10.42.1.2/24 on eth0",
        "pod: address fd42:0:0:1::2/64 on eth0",
        "pod: up eth0",
        "pod: route 0.0.0.0/0 via 10.42.1.1 dev eth0",
        "pod: route ::/0 via fd42:0:0:1::1 dev eth0",
        "node: address 10.42.1.1/24 on cox0",
        "node: set mac of cox0",
        "node: net/ipv4/ip_forward = 1",
        "node: address fd42:0:0:1::1/64 on cox0",
        "node: set mac of cox0",
        "node: net/ipv6/conf/all/forwarding = 1",
        "node: masquerade 10.42.1.2",
        "node: masquerade fd42:0:0:1::2",
        "pod: set mac of eth0",
        "node: cox0 learns nothing from frames to bridges",
        "node: net/ipv4/conf/veth…/drop_unicast_in_l2_multicast = 1",
        "node: net/ipv6/conf/veth…/drop_unicast_in_l2_multicast = 1",
        "node: may send as 02:00:00:00:00:0b",
        "node: guard port: addresses",
        "node: may send as 10.42.1.2",
        "node: may send as fd42:0:0:1::2",
        "node: may send as fe80::ff:fe00:b",
    ];
    assert_eq!(node.calls(), expected);
    let names: Vec<&str> = result.interfaces.iter().map(|interface| shown(&interface.name)).collect();
    assert_eq!(names, ["cox0", "veth…", "eth0"]);
    // The next pod finds the bridge and its addresses as they are.
    let mut second = call(data.path(), "bridge", json!({"bridge": "cox0", "isGateway": true}));
    second.container_id = "two".into();
    let other = Recorded { side: "other pod", ..pod };
    bridge::attach_to(&second, &node, &other).unwrap();
    let calls = node.calls();
    assert!(calls.contains(&"other pod: address 10.42.1.3/24 on eth0".to_owned()), "{calls:#?}");
    assert!(
        !calls.iter().any(|call| call.starts_with("node: bridge") || call.starts_with("node: address")),
        "{calls:#?}"
    );
}

#[test]
fn ports_of_a_bridge_have_the_vlans_they_ask_for() {
    for (more, expected) in [
        (json!({"vlan": 100}), vec!["node: vlan 100 on veth… native"]),
        (
            json!({"vlan": 100, "preserveDefaultVlan": false}),
            vec!["node: no vlan 1 on veth…", "node: vlan 100 on veth… native"],
        ),
        (
            json!({"vlanTrunk": [{"id": 7}, {"minID": 20, "maxID": 21}]}),
            vec![
                "node: vlan 7 on veth…",
                "node: vlan 20 on veth…",
                "node: vlan 21 on veth…",
                "node: vlan 1 on veth… native",
            ],
        ),
        (json!({"portIsolation": true}), vec!["node: isolated veth… true"]),
    ] {
        let data = tempfile::tempdir().unwrap();
        let (node, pod) = sides();
        bridge::attach_to(&call(data.path(), "bridge", more.clone()), &node, &pod).unwrap();
        let calls = node.calls();
        let start = calls.iter().position(|call| *call == "node: veth… is a port of cni0").unwrap() + 1;
        assert_eq!(calls[start..start + expected.len()], expected, "{more}");
    }
}

#[test]
fn ports_are_guarded_as_the_network_says() {
    let without_ipam = |more: Value| {
        let mut more = more;
        more["ipam"] = json!({});
        more
    };
    for (more, expected) in [
        (json!({}), Some("addresses")),
        (json!({"macspoofchk": true}), Some("addresses")),
        (json!({"macspoofchk": false}), None),
        (json!({"ipspoofchk": false}), Some("hardware")),
        // Nobody knows what such a pod may use.
        (without_ipam(json!({})), None),
        (without_ipam(json!({"macspoofchk": true})), Some("hardware")),
    ] {
        let data = tempfile::tempdir().unwrap();
        let (node, pod) = sides();
        bridge::attach_to(&call(data.path(), "bridge", more.clone()), &node, &pod).unwrap();
        let calls = node.calls();
        let guard = calls.iter().find_map(|call| call.strip_prefix("node: guard port: "));
        assert_eq!(guard, expected, "{more}");
    }
    for more in [json!({"macspoofchk": false, "ipspoofchk": true}), without_ipam(json!({"ipspoofchk": true}))] {
        let data = tempfile::tempdir().unwrap();
        let (node, pod) = sides();
        let error = bridge::attach_to(&call(data.path(), "bridge", more.clone()), &node, &pod).unwrap_err();
        assert!(error.msg.starts_with("ipspoofchk needs"), "{more}: {error}");
    }
}

#[test]
fn a_bridge_keeps_the_address_that_somebody_gave_it() {
    let data = tempfile::tempdir().unwrap();
    let (node, pod) = sides();
    node.make("node", "cni0", "bridge");
    node.add_address(10, "192.0.2.1/24".parse().unwrap()).unwrap();
    let gateway = |more: Value| call(data.path(), "bridge", more);
    let error = bridge::attach_to(&gateway(json!({"isGateway": true})), &node, &pod).unwrap_err();
    assert!(error.msg.contains("\"cni0\" already has an IP address different from 10.42.1.1/24"), "{error}");
    let (node, pod) = sides();
    node.make("node", "cni0", "bridge");
    node.add_address(10, "192.0.2.1/24".parse().unwrap()).unwrap();
    let mut forced = gateway(json!({"isGateway": true, "forceAddress": true}));
    forced.container_id = "two".into();
    bridge::attach_to(&forced, &node, &pod).unwrap();
    assert!(node.calls().contains(&"node: no address 192.0.2.1/24 on cni0".to_owned()));
    // What is no bridge is not taken for one.
    let (node, pod) = sides();
    node.make("node", "cni0", "dummy");
    let error = bridge::attach_to(&gateway(json!({})), &node, &pod).unwrap_err();
    assert!(error.msg.contains("already exists but is not a bridge"), "{error}");
}

#[test]
fn a_pod_of_its_own_link_reaches_even_its_network_through_the_node() {
    let data = tempfile::tempdir().unwrap();
    let (node, pod) = sides();
    let mut call = call(data.path(), "ptp", json!({}));
    call.config["ipam"]["ranges"] = json!([[{"subnet": "10.42.1.0/24"}]]);
    call.config["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}]);
    ptp::attach_to(&call, &node, &pod).unwrap();
    let expected = [
        "node: net/ipv4/ip_forward = 1",
        "pod: veth eth0 to node's veth… mtu 0",
        "node: up veth…",
        "node: net/ipv6/conf/veth…/accept_ra = 0",
        "pod: net/ipv6/conf/eth0/accept_dad = 0",
        "pod: net/ipv4/conf/eth0/arp_notify = 1",
        "pod: net/ipv6/conf/eth0/ndisc_notify = 1",
        "pod: net/ipv6/conf/eth0/accept_ra = 0",
        "pod: address 10.42.1.2/24 on eth0",
        "pod: up eth0",
        "pod: route 0.0.0.0/0 via 10.42.1.1 dev eth0",
        "pod: no route 10.42.1.0/24 dev eth0 scope link",
        "pod: route 10.42.1.1/32 dev eth0 src 10.42.1.2 scope link",
        "pod: route 10.42.1.0/24 via 10.42.1.1 dev eth0 src 10.42.1.2",
        "pod: route 0.0.0.0/0 via 10.42.1.1 dev eth0",
        "node: guard port: packets",
        "node: may send as 10.42.1.2",
        "node: may send as fe80::ff:fe00:a",
        "node: address 10.42.1.1/32 on veth…",
        "node: route 10.42.1.2/32 dev veth… scope host",
    ];
    assert_eq!(node.calls(), expected);
}
