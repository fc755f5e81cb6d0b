//! The second round of mutation: a policy or webhook that asked for it sees the object again when a later plug-in
//! changed it.
//!
//! One more round at most, whatever they do, so two of them that undo each other cannot loop.

use std::collections::BTreeSet;

use registry::AnyObject;

/// Who is called a second time.
#[derive(Clone, Copy)]
pub(super) enum Callees {
    Policies,
    Webhooks,
}

#[derive(Default)]
pub(crate) struct Reinvocation {
    second_round: bool,
    wanted: bool,
    policies: Called,
    webhooks: Called,
}

/// Which of a kind were called, and which must be called again (upstream's `webhookReinvokeContext` and
/// `policyReinvokeContext`).
#[derive(Default)]
struct Called {
    /// Those with `reinvocationPolicy: IfNeeded` that have run since the last change.
    ran: BTreeSet<String>,
    again: BTreeSet<String>,
    /// What they left behind, to see whether another plug-in changed it afterwards.
    output: Option<AnyObject>,
}

impl Reinvocation {
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted
    }

    pub(super) fn begin_second_round(&mut self) {
        self.second_round = true;
        self.wanted = false;
    }

    pub(super) fn is_second_round(&self) -> bool {
        self.second_round
    }

    fn of(&mut self, callees: Callees) -> &mut Called {
        match callees {
            Callees::Policies => &mut self.policies,
            Callees::Webhooks => &mut self.webhooks,
        }
    }

    /// Called before those of a round: changes made since they last ran call them again.
    pub(super) fn enter(&mut self, callees: Callees, object: Option<&AnyObject>) {
        if !self.second_round {
            return;
        }
        let called = self.of(callees);
        let changed = match (&called.output, object) {
            (Some(before), Some(now)) => !now.same(&**before),
            (None, None) => false,
            _ => true,
        };
        if changed {
            called.again();
        }
    }

    /// Called after those of a round. Without one to call again there is nothing to remember.
    pub(super) fn leave(&mut self, callees: Callees, object: Option<&AnyObject>) {
        let called = self.of(callees);
        if !called.ran.is_empty() || !called.again.is_empty() {
            called.output = object.map(|object| object.boxed_clone());
        }
    }

    pub(super) fn may_call(&mut self, callees: Callees, name: &str) -> bool {
        !self.second_round || self.of(callees).again.contains(name)
    }

    /// One was called; whether it changed the object, and whether it wants to see later changes.
    pub(super) fn called(&mut self, callees: Callees, name: &str, changed: bool, if_needed: bool) {
        let called = self.of(callees);
        if changed {
            called.again();
        }
        if if_needed {
            called.ran.insert(name.to_owned());
        }
        self.wanted |= changed;
    }
}

impl Called {
    fn again(&mut self) {
        self.again.append(&mut self.ran);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOOKS: Callees = Callees::Webhooks;

    #[test]
    fn only_webhooks_before_a_change_run_again() {
        let mut cluster = Reinvocation::default();
        cluster.enter(HOOKS, None);
        cluster.called(HOOKS, "a", true, true);
        cluster.called(HOOKS, "b", true, true);
        cluster.called(HOOKS, "c", false, true);
        cluster.called(HOOKS, "d", false, false);
        cluster.leave(HOOKS, None);
        assert!(cluster.is_wanted());
        cluster.begin_second_round();
        let again: Vec<&str> = ["a", "b", "c", "d"].into_iter().filter(|hook| cluster.may_call(HOOKS, hook)).collect();
        // `b` changed the object after `a` ran; nothing changed after `b` and `c`.
        assert_eq!(again, ["a"]);
        assert!(!cluster.is_wanted());
    }
}
