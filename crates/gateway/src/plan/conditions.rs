//! Conditions of the Gateway API: a time changes only with the state it is about.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// One condition as it should be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) kind: &'static str,
    pub(super) is_true: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Wanted {
    /// True for the usual reason, or false for another.
    pub(super) fn of(kind: &'static str, reason: &str, outcome: &Result<(), (String, String)>) -> Self {
        let (is_true, reason, message) = match outcome {
            Ok(()) => (true, reason.to_owned(), String::new()),
            Err((reason, message)) => (false, reason.clone(), message.clone()),
        };
        Self { kind, is_true, reason, message }
    }
}

/// The present conditions with the wanted ones in their places; those of others stay.
pub(super) fn merge(
    present: &[Condition],
    wanted: &[Wanted],
    generation: Option<i64>,
    now: jiff::Timestamp,
) -> Vec<Condition> {
    let others = present.iter().filter(|condition| !wanted.iter().any(|wanted| wanted.kind == condition.type_));
    let ours = wanted.iter().map(|wanted| {
        let status = if wanted.is_true { "True" } else { "False" };
        let before = present.iter().find(|condition| condition.type_ == wanted.kind && condition.status == status);
        Condition {
            type_: wanted.kind.to_owned(),
            status: status.to_owned(),
            reason: wanted.reason.clone(),
            message: wanted.message.clone(),
            observed_generation: generation,
            last_transition_time: before.map_or(Time(now), |before| before.last_transition_time.clone()),
        }
    });
    ours.chain(others.cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_changes_with_its_state_only() {
        let at = |second| jiff::Timestamp::from_second(second).unwrap();
        let wanted = |outcome| vec![Wanted::of("Accepted", "Accepted", &outcome)];
        let first = merge(&[], &wanted(Ok(())), Some(1), at(1));
        let second = merge(&first, &wanted(Ok(())), Some(2), at(2));
        assert_eq!((second[0].last_transition_time.0, second[0].observed_generation), (at(1), Some(2)));
        let refused = wanted(Err(("NotAllowedByListeners".into(), "no".into())));
        let third = merge(&second, &refused, Some(2), at(3));
        assert_eq!((third[0].last_transition_time.0, third[0].status.as_str()), (at(3), "False"));
        assert_eq!(merge(&third, &refused, Some(2), at(4)), third);
        let foreign = Condition { type_: "Else".into(), ..first[0].clone() };
        assert_eq!(merge(std::slice::from_ref(&foreign), &refused, None, at(4)).len(), 2);
    }
}
