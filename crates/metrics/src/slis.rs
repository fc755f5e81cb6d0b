//! `/metrics/slis`: how the checks of a component came out, each time somebody had them made.

use crate::Metrics;

const STATE: &str = "kubernetes_healthcheck";
const TOTAL: &str = "kubernetes_healthchecks_total";

/// The checks of one component.
#[derive(Clone, Default)]
pub struct Slis(Metrics);

impl Slis {
    /// Notes the outcome of a check that `kind` (`healthz`, `livez`, `readyz`) made.
    pub fn note(&self, kind: &str, name: &str, is_ok: bool) {
        let labels = [("name", name), ("type", kind)];
        let help = "[STABLE] Whether a check passed when it was last made.";
        self.0.gauge(STATE, help, &labels).set(f64::from(u8::from(is_ok)));
        for (status, is_this) in [("success", is_ok), ("error", !is_ok)] {
            if is_this {
                let labels = [("name", name), ("status", status), ("type", kind)];
                self.0.counter(TOTAL, "[STABLE] How checks came out.", &labels).inc();
            }
        }
    }

    pub fn render(&self) -> String {
        self.0.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_counted_by_how_they_came_out() {
        let slis = Slis::default();
        slis.note("readyz", "ping", true);
        slis.note("readyz", "ping", false);
        slis.note("readyz", "ping", true);
        let text = slis.render();
        for line in [
            "kubernetes_healthcheck{name=\"ping\",type=\"readyz\"} 1\n",
            "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"readyz\"} 2\n",
            "kubernetes_healthchecks_total{name=\"ping\",status=\"error\",type=\"readyz\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        use crate::upstream::{Component, problems};
        assert_eq!(problems(Component::Slis, &text), Vec::<String>::new());
    }
}
