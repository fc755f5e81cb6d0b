//! Waiting pods of higher priority come first.

use std::cmp::Ordering;

use crate::framework::{Plugin, Point};
use crate::pod::PodInfo;

pub(crate) struct PrioritySort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        "PrioritySort"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::QueueSort]
    }

    fn compare(&self, one: &PodInfo, other: &PodInfo) -> Ordering {
        other.priority.cmp(&one.priority)
    }
}
