//! A pod with scheduling gates is not tried until they are gone.

use crate::framework::{Event, Plugin, Point, Rejection};
use crate::pod::{self, PodInfo};

pub(crate) struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        "SchedulingGates"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreEnqueue]
    }

    fn pre_enqueue(&self, pod: &PodInfo) -> Result<(), Rejection> {
        if !pod::has_gates(&pod.pod) {
            return Ok(());
        }
        let gates = pod.pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
        let names: Vec<&str> = gates.map(|gate| gate.name.as_str()).collect();
        let reason = format!("waiting for scheduling gates: [{}]", names.join(" "));
        Err(Rejection::new(self.name(), reason).unresolvable())
    }

    fn may_help(&self, _pod: &PodInfo, event: &Event) -> bool {
        matches!(event, Event::SelfChanged { gates_gone: true, .. })
    }
}
