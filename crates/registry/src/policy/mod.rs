//! Strategies of the policy group.

pub mod pod_disruption_budget;
