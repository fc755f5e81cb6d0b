//! What the operator chose, as far as rules depend on it.

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) cluster_cidrs: Vec<String>,
    pub(crate) service_cidrs: Vec<String>,
    pub(crate) node_port_addresses: Vec<String>,
    pub(crate) localhost_node_ports: bool,
    pub(crate) masquerade_all: bool,
    pub(crate) masquerade_bit: u8,
}

impl Settings {
    /// The bit of the packet mark that asks for masquerading.
    pub(crate) fn mask(&self) -> u32 {
        1 << self.masquerade_bit.min(31)
    }

    /// The ranges of one family.
    pub(crate) fn of_family<'a>(&self, ranges: &'a [String], is_v6: bool) -> impl Iterator<Item = &'a str> {
        ranges.iter().map(String::as_str).filter(move |range| range.contains(':') == is_v6)
    }
}
