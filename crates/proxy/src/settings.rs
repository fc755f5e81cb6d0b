//! What the operator chose, as far as rules depend on it.

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) cluster_cidrs: Vec<String>,
    pub(crate) service_cidrs: Vec<String>,
    pub(crate) pods: Pods,
    pub(crate) node_port_addresses: Vec<String>,
    pub(crate) localhost_node_ports: bool,
    pub(crate) masquerade_all: bool,
    pub(crate) masquerade_bit: u8,
}

/// What pods' packets are known by; a service answers them without masquerading.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pods {
    /// They come from one of these.
    Ranges(Vec<String>),
    /// They arrive at the interface with this name.
    Interface(String),
    /// They arrive at an interface whose name begins like this.
    Interfaces(String),
}

impl Default for Pods {
    fn default() -> Self {
        Self::Ranges(Vec::new())
    }
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
