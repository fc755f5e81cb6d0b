//! Prefers nodes whose resources would be used in more equal shares with the pod than without it.

use super::node_resources::{Weighed, asked, share};
use crate::cluster::View;
use crate::framework::{Basis, MAX_SCORE, Plugin, Point, Scale};
use crate::pod::Class;

pub(crate) struct BalancedAllocation {
    pub(crate) resources: Vec<Weighed>,
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreScore, Point::Score]
    }

    fn basis(&self) -> Basis {
        Basis::Usage
    }

    /// A pod that asks for nothing cannot unbalance a node.
    fn scale(&self, class: &Class) -> Option<Scale> {
        self.resources.iter().any(|weighed| asked(weighed.resource, class) != 0).then_some(Scale::Absolute)
    }

    fn score(&self, class: &Class, node: &View<'_>) -> i64 {
        let shares = || self.resources.iter().filter_map(|weighed| share(weighed.resource, class, node, true));
        let before = balance(shares().map(|share| share.taken as f64 / share.offered as f64));
        let after = balance(shares().map(|share| share.with_pod as f64 / share.offered as f64));
        MAX_SCORE / 2 + (MAX_SCORE / 2 + after - before) / 2
    }
}

/// 100 for equal shares, less the more they deviate from their mean.
fn balance(fractions: impl Iterator<Item = f64> + Clone) -> i64 {
    let capped = fractions.map(|fraction| fraction.min(1.0));
    let count = capped.clone().count();
    let deviation = match count {
        0 | 1 => 0.0,
        2 => capped.reduce(|one, other| ((one - other) / 2.0).abs()).unwrap_or(0.0),
        count => {
            let mean = capped.clone().sum::<f64>() / count as f64;
            (capped.map(|fraction| (fraction - mean) * (fraction - mean)).sum::<f64>() / count as f64).sqrt()
        }
    };
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}
