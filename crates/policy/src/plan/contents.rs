//! What is planned, and how far it differs from what was planned when it was last in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::world::Protocol;

/// The maps from an isolated pod's address to its chain, and the type of their keys.
pub(crate) const SUBJECTS: [(&str, &str); 4] =
    [("egress4", "ipv4_addr"), ("egress6", "ipv6_addr"), ("ingress4", "ipv4_addr"), ("ingress6", "ipv6_addr")];

/// Sets, chains and maps by name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) sets: BTreeMap<String, Set>,
    pub(crate) chains: BTreeMap<String, Vec<String>>,
    /// Maps are sets whose elements have values, and are always there.
    pub(crate) subjects: BTreeMap<&'static str, BTreeMap<IpAddr, String>>,
    /// The rules that every forwarded packet meets.
    pub(crate) forward: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Set {
    pub(crate) declaration: String,
    pub(crate) elements: BTreeSet<Element>,
}

/// An element of a set; shown as `nft` writes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Element {
    Address(IpAddr),
    Port(IpAddr, Protocol, u16),
    /// An address and itself.
    Twice(IpAddr),
    /// Ranges.
    Text(String),
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Port(address, protocol, port) => write!(f, "{address} . {} . {port}", protocol.name()),
            Self::Twice(address) => write!(f, "{address} . {address}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Default for Plan {
    fn default() -> Self {
        let subjects = SUBJECTS.map(|(map, _)| (map, BTreeMap::new())).into();
        Self { sets: BTreeMap::new(), chains: BTreeMap::new(), subjects, forward: Vec::new() }
    }
}

impl Plan {
    /// Nobody is isolated: there need not be a table.
    pub(crate) fn is_empty(&self) -> bool {
        self.subjects.values().all(BTreeMap::is_empty)
    }
}

/// What was there before, of all that was touched since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched {
    pub(crate) sets: BTreeMap<String, Was>,
    pub(crate) chains: BTreeMap<String, Option<Vec<String>>>,
    pub(crate) subjects: BTreeMap<(&'static str, IpAddr), Option<String>>,
    pub(crate) forward: Option<Vec<String>>,
}

/// What a set was.
#[derive(Clone, Debug)]
pub(crate) enum Was {
    Absent,
    Whole(Set),
    /// There, and which of the elements that were touched it had.
    There(BTreeMap<Element, bool>),
}

impl Touched {
    /// As if nothing of a plan had been there before.
    pub(crate) fn all(plan: &Plan) -> Self {
        let subjects = plan.subjects.iter().flat_map(|(map, entries)| entries.keys().map(|key| ((*map, *key), None)));
        Self {
            sets: plan.sets.keys().map(|name| (name.clone(), Was::Absent)).collect(),
            chains: plan.chains.keys().map(|name| (name.clone(), None)).collect(),
            subjects: subjects.collect(),
            forward: Some(Vec::new()),
        }
    }
}

/// A plan that remembers what it was.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) plan: Plan,
    pub(super) touched: Touched,
}

impl Draft {
    pub(super) fn put_set(&mut self, name: &str, declaration: String, elements: BTreeSet<Element>) {
        self.drop_set(name);
        self.touched.sets.entry(name.to_owned()).or_insert(Was::Absent);
        self.plan.sets.insert(name.to_owned(), Set { declaration, elements });
    }

    pub(super) fn drop_set(&mut self, name: &str) {
        let Some(mut set) = self.plan.sets.remove(name) else { return };
        let was = self.touched.sets.entry(name.to_owned()).or_insert_with(|| Was::There(BTreeMap::new()));
        if let Was::There(parts) = was {
            for (element, was_there) in std::mem::take(parts) {
                match was_there {
                    true => drop(set.elements.insert(element)),
                    false => drop(set.elements.remove(&element)),
                }
            }
            *was = Was::Whole(set);
        }
    }

    /// Adds an element; the set begins with its first.
    pub(super) fn add_element(&mut self, name: &str, declaration: impl FnOnce() -> String, element: Element) {
        if !self.plan.sets.contains_key(name) {
            self.put_set(name, declaration(), BTreeSet::new());
        }
        self.change_element(name, element, true);
    }

    pub(super) fn remove_element(&mut self, name: &str, element: Element) {
        self.change_element(name, element, false);
    }

    fn change_element(&mut self, name: &str, element: Element, is_there: bool) {
        let Some(set) = self.plan.sets.get_mut(name) else { return };
        let was_there = match is_there {
            true => !set.elements.insert(element.clone()),
            false => set.elements.remove(&element),
        };
        if was_there == is_there {
            return;
        }
        let was = match self.touched.sets.get_mut(name) {
            Some(was) => was,
            None => self.touched.sets.entry(name.to_owned()).or_insert_with(|| Was::There(BTreeMap::new())),
        };
        if let Was::There(parts) = was {
            parts.entry(element).or_insert(was_there);
        }
    }

    pub(super) fn put_chain(&mut self, name: &str, rules: Vec<String>) {
        if self.plan.chains.get(name) != Some(&rules) {
            let had = self.plan.chains.insert(name.to_owned(), rules);
            self.touched.chains.entry(name.to_owned()).or_insert(had);
        }
    }

    pub(super) fn drop_chain(&mut self, name: &str) {
        if let Some(had) = self.plan.chains.remove(name) {
            self.touched.chains.entry(name.to_owned()).or_insert(Some(had));
        }
    }

    /// Leads packets of an address to a chain, or past all of them; says what did before.
    pub(super) fn lead(&mut self, map: &'static str, address: IpAddr, verdict: Option<String>) -> Option<String> {
        let entries = self.plan.subjects.entry(map).or_default();
        let had = match verdict.clone() {
            Some(verdict) => entries.insert(address, verdict),
            None => entries.remove(&address),
        };
        if had != verdict {
            self.touched.subjects.entry((map, address)).or_insert_with(|| had.clone());
        }
        had
    }

    pub(super) fn put_forward(&mut self, rules: &[String]) {
        if self.plan.forward != rules {
            let had = std::mem::replace(&mut self.plan.forward, rules.to_vec());
            self.touched.forward.get_or_insert(had);
        }
    }
}
