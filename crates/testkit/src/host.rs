//! A host for a cluster of its own: a network namespace that leads nowhere.

/// What `ip` is told inside of a new namespace: loopback, one address, and a default route to nobody.
pub const ISOLATED: [&str; 6] = [
    "link set lo up",
    "link add eth0 type veth peer name out0",
    "link set out0 up",
    "addr add 172.31.7.2/24 dev eth0",
    "link set eth0 up",
    "route add default via 172.31.7.1",
];

/// The same with an address of IPv6 and none of IPv4.
pub const ISOLATED_SIX: [&str; 6] = [
    "link set lo up",
    "link add eth0 type veth peer name out0",
    "link set out0 up",
    "-6 addr add fd31::2/64 dev eth0 nodad",
    "link set eth0 up",
    "-6 route add default via fd31::1 dev eth0",
];
