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
