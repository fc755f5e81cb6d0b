//! Why no node takes a pod, node by node, and in upstream's words as a whole.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use api::sort::CompactSort as _;

use super::Rejection;
use crate::cluster::NodeId;

#[derive(Debug, Default)]
pub(crate) struct Diagnosis {
    /// How many nodes there are.
    pub(crate) nodes: usize,
    /// Nodes that were looked at, with an index into `rejections`.
    pub(crate) rejected: Vec<(NodeId, u16)>,
    pub(crate) rejections: Vec<Rejection>,
    /// What holds for nodes that were not looked at.
    pub(crate) absent: Option<Rejection>,
    /// The pod was rejected as such, before any node was looked at; then that is all that is said.
    pub(crate) pre_filter: Option<Rejection>,
    /// Said last: what came of trying to make room.
    pub(crate) post_filter: String,
    /// An extender rejected nodes as well.
    pub(crate) by_extender: bool,
}

/// The name under which waiting pods remember that an extender rejected them.
pub(crate) const EXTENDER: &str = "Extender";

impl Diagnosis {
    pub(crate) fn add(&mut self, node: NodeId, rejection: &Rejection) {
        let known = self.rejections.iter().position(|known| known == rejection);
        let at = known.unwrap_or_else(|| {
            self.rejections.push(rejection.clone());
            self.rejections.len() - 1
        });
        self.rejected.push((node, at as u16));
    }

    /// The plug-ins that rejected the pod somewhere: events that concern them make it worth another try.
    pub(crate) fn plugins(&self) -> BTreeSet<&'static str> {
        let used: BTreeSet<u16> = self.rejected.iter().map(|(_, at)| *at).collect();
        let on_nodes = used.iter().map(|at| self.rejections[usize::from(*at)].plugin);
        let overall = self.pre_filter.iter().chain(&self.absent).map(|rejection| rejection.plugin);
        on_nodes.chain(overall).chain(self.by_extender.then_some(EXTENDER)).filter(|name| !name.is_empty()).collect()
    }

    /// Nodes where taking pods away could help.
    pub(crate) fn resolvable<'a>(&'a self, all: &'a [NodeId]) -> Vec<NodeId> {
        if let Some(rejection) = &self.pre_filter {
            return if rejection.is_unresolvable { Vec::new() } else { all.to_vec() };
        }
        let can_help = |(_, at): &&(NodeId, u16)| !self.rejections[usize::from(*at)].is_unresolvable;
        self.rejected.iter().filter(can_help).map(|(node, _)| *node).collect()
    }

    pub(crate) fn of(&self, node: NodeId) -> Option<&Rejection> {
        let (_, at) = self.rejected.iter().find(|(other, _)| *other == node)?;
        Some(&self.rejections[usize::from(*at)])
    }
}

impl fmt::Display for Diagnosis {
    /// `0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu.`, and what trying to make room said.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "0/{} nodes are available:", self.nodes)?;
        match &self.pre_filter {
            Some(rejection) => write!(out, " {}.", rejection.reasons.join(", "))?,
            None => {
                let mut by_rejection = vec![0; self.rejections.len()];
                self.rejected.iter().for_each(|(_, at)| by_rejection[usize::from(*at)] += 1);
                let absent = self.nodes.saturating_sub(self.rejected.len());
                let groups = self.rejections.iter().zip(by_rejection).chain(self.absent.iter().map(|a| (a, absent)));
                let mut counts: BTreeMap<&Cow<'static, str>, usize> = BTreeMap::new();
                for (rejection, count) in groups.filter(|(_, count)| *count > 0) {
                    rejection.reasons.iter().for_each(|reason| *counts.entry(reason).or_default() += count);
                }
                let mut reasons: Vec<String> =
                    counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
                reasons.compact_sort();
                if !reasons.is_empty() {
                    write!(out, " {}.", reasons.join(", "))?;
                }
            }
        }
        if !self.post_filter.is_empty() {
            write!(out, " {}", self.post_filter)?;
        }
        Ok(())
    }
}
