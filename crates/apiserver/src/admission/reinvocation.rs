//! The second round of mutation: a webhook that asked for it sees the object again when a later plug-in changed it.
//!
//! One more round at most, whatever the webhooks do, so two of them that undo each other cannot loop.

use std::collections::BTreeSet;

use crate::registry::AnyObject;

/// Which webhooks were called, and which must be called again (upstream's `webhookReinvokeContext`).
#[derive(Default)]
pub(crate) struct Reinvocation {
    second_round: bool,
    wanted: bool,
    /// Webhooks with `reinvocationPolicy: IfNeeded` that have run since the last change.
    ran: BTreeSet<String>,
    again: BTreeSet<String>,
    /// What the webhooks left behind, to see whether a built-in plug-in changed it afterwards.
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

    /// Called before the webhooks of a round: changes made since they last ran call them again.
    pub(super) fn enter(&mut self, object: Option<&AnyObject>) {
        if !self.second_round {
            return;
        }
        let changed = match (&self.output, object) {
            (Some(before), Some(now)) => !now.same(&**before),
            (None, None) => false,
            _ => true,
        };
        if changed {
            self.call_again();
        }
    }

    /// Called after the webhooks of a round. Without a webhook to call again there is nothing to remember.
    pub(super) fn leave(&mut self, object: Option<&AnyObject>) {
        if !self.ran.is_empty() || !self.again.is_empty() {
            self.output = object.map(|object| object.boxed_clone());
        }
    }

    pub(super) fn may_call(&self, hook: &str) -> bool {
        !self.second_round || self.again.contains(hook)
    }

    /// A webhook was called; whether it changed the object, and whether it wants to see later changes.
    pub(super) fn called(&mut self, hook: &str, changed: bool, if_needed: bool) {
        if changed {
            self.call_again();
            self.wanted = true;
        }
        if if_needed {
            self.ran.insert(hook.to_owned());
        }
    }

    fn call_again(&mut self) {
        self.again.append(&mut self.ran);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_webhooks_before_a_change_run_again() {
        let mut state = Reinvocation::default();
        state.enter(None);
        state.called("a", true, true);
        state.called("b", true, true);
        state.called("c", false, true);
        state.called("d", false, false);
        state.leave(None);
        assert!(state.is_wanted());
        state.begin_second_round();
        let again: Vec<&str> = ["a", "b", "c", "d"].into_iter().filter(|hook| state.may_call(hook)).collect();
        // `b` changed the object after `a` ran; nothing changed after `b` and `c`.
        assert_eq!(again, ["a"]);
        assert!(!state.is_wanted());
    }
}
