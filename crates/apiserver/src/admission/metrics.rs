//! How long admission takes and what it refuses, under upstream's names.
//!
//! Plug-ins run on every write, so what is counted for them are atomics in a fixed place; webhooks are known only by
//! name and rare by comparison.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::Verb;

/// The two rounds of admission.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Admit,
    Validate,
}

const STEPS: [(Step, &str); 2] = [(Step::Admit, "admit"), (Step::Validate, "validate")];
const VERBS: [Verb; 4] = [Verb::Create, Verb::Update, Verb::Delete, Verb::Connect];
const PLUGIN_BOUNDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const WEBHOOK_BOUNDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
const POLICY_BOUNDS: &[f64] = &[0.000_000_5, 0.001, 0.01, 0.1, 1.0];
const EXPRESSION_BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Buckets of the longest list, and one for what is above.
const BUCKETS: usize = 12;

#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    nanoseconds: AtomicU64,
}

impl Histogram {
    fn observe(&self, bounds: &[f64], took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = bounds.iter().position(|bound| seconds <= *bound).unwrap_or(bounds.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    const fn new() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], nanoseconds: AtomicU64::new(0) }
    }

    /// Without labels, and shown from the start.
    fn render_alone(&self, out: &mut String, name: &str, help: &str, bounds: &[f64]) {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} histogram\n");
        let mut count = 0;
        for (bucket, number) in self.buckets[..=bounds.len()].iter().enumerate() {
            count += number.load(Ordering::Relaxed);
            let bound = bounds.get(bucket).map_or_else(|| "+Inf".to_owned(), ToString::to_string);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let seconds = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = write!(out, "{name}_sum {seconds}\n{name}_count {count}\n");
    }

    fn render(&self, out: &mut String, name: &str, bounds: &[f64], labels: &str) {
        let mut count = 0;
        let mut lines = String::new();
        for (bucket, number) in self.buckets[..=bounds.len()].iter().enumerate() {
            count += number.load(Ordering::Relaxed);
            let bound = bounds.get(bucket).map_or_else(|| "+Inf".to_owned(), ToString::to_string);
            let _ = writeln!(lines, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        if count > 0 {
            let seconds = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
            let _ = write!(out, "{lines}{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {count}\n");
        }
    }
}

/// The times of one plug-in, or of all of them together, by step, operation and outcome.
#[derive(Default)]
pub(super) struct Times([[[Histogram; 2]; VERBS.len()]; STEPS.len()]);

impl Times {
    pub(super) fn observe(&self, step: Step, verb: Verb, took: Duration, rejected: bool) {
        self.0[step as usize][verb as usize][usize::from(rejected)].observe(PLUGIN_BOUNDS, took);
    }

    /// `labels` go before those of the times and end with a comma.
    fn render(&self, out: &mut String, name: &str, labels: &str) {
        for (step, kind) in STEPS {
            for verb in VERBS {
                for rejected in [false, true] {
                    let labels =
                        format!("{labels}operation=\"{}\",rejected=\"{rejected}\",type=\"{kind}\"", verb.as_str());
                    let times = &self.0[step as usize][verb as usize][usize::from(rejected)];
                    times.render(out, name, PLUGIN_BOUNDS, &labels);
                }
            }
        }
    }
}

/// What came of asking a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Allowed,
    /// It refused, with this code.
    Denied(u16),
    /// It could not be asked, or answered nonsense; `open` if the write went on all the same.
    Failed {
        open: bool,
    },
}

/// What is known of one webhook.
#[derive(Default)]
struct Webhook {
    times: BTreeMap<(&'static str, &'static str, bool), Histogram>,
    requests: BTreeMap<(&'static str, &'static str, u16, bool), u64>,
    rejections: BTreeMap<(&'static str, &'static str, &'static str, u16), u64>,
    failed_open: BTreeMap<&'static str, u64>,
}

static WEBHOOKS: Mutex<BTreeMap<String, Webhook>> = Mutex::new(BTreeMap::new());

/// Codes above this are counted as this one, so that a webhook cannot make numbers up.
const MAX_CODE: u16 = 600;

pub(super) fn observe_webhook(name: &str, mutating: bool, verb: Verb, took: Duration, asked: Asked) {
    let (kind, verb) = (if mutating { "admit" } else { "validating" }, verb.as_str());
    let (code, rejected) = match asked {
        Asked::Allowed => (200, false),
        Asked::Denied(code) => (code.min(MAX_CODE), true),
        Asked::Failed { open } => (0, !open),
    };
    let mut webhooks = WEBHOOKS.lock();
    let webhook = webhooks.entry(name.to_owned()).or_default();
    webhook.times.entry((kind, verb, rejected)).or_default().observe(WEBHOOK_BOUNDS, took);
    *webhook.requests.entry((kind, verb, code, rejected)).or_default() += 1;
    if rejected {
        let error = if asked == (Asked::Failed { open: false }) { "calling_webhook_error" } else { "no_error" };
        *webhook.rejections.entry((kind, verb, error, code)).or_default() += 1;
    }
    if asked == (Asked::Failed { open: true }) {
        *webhook.failed_open.entry(kind).or_default() += 1;
    }
}

/// What an expression was worked on for.
#[derive(Clone, Copy)]
pub(super) enum Expression {
    Compiled,
    Evaluated,
}

static COMPILATIONS: Histogram = Histogram::new();
static EVALUATIONS: Histogram = Histogram::new();

pub(super) fn observe_expression(what: Expression, took: Duration) {
    let times = match what {
        Expression::Compiled => &COMPILATIONS,
        Expression::Evaluated => &EVALUATIONS,
    };
    times.observe(EXPRESSION_BOUNDS, took);
}

/// Policy, binding, what was done and what went wrong.
type Check = (String, String, &'static str, &'static str);

static CHECKS: Mutex<BTreeMap<Check, Histogram>> = Mutex::new(BTreeMap::new());

/// What came of asking a policy through a binding: `action` is what was done about it.
pub(super) fn observe_check(policy: &str, binding: &str, action: &'static str, error: &'static str, took: Duration) {
    let check = (policy.to_owned(), binding.to_owned(), action, error);
    CHECKS.lock().entry(check).or_default().observe(POLICY_BOUNDS, took);
}

fn render_checks(out: &mut String) {
    const TOTAL: &str = "apiserver_validating_admission_policy_check_total";
    const DURATION: &str = "apiserver_validating_admission_policy_check_duration_seconds";
    let checks = CHECKS.lock();
    if checks.is_empty() {
        return;
    }
    let labels = |(policy, binding, action, error): &Check| {
        format!(
            "enforcement_action=\"{action}\",error_type=\"{error}\",policy=\"{policy}\",policy_binding=\"{binding}\""
        )
    };
    let _ = writeln!(out, "# HELP {TOTAL} [BETA] Checks by policy, binding and what was done.\n# TYPE {TOTAL} counter");
    for (check, times) in checks.iter() {
        let count: u64 = times.buckets.iter().map(|number| number.load(Ordering::Relaxed)).sum();
        let _ = writeln!(out, "{TOTAL}{{{}}} {count}", labels(check));
    }
    let help = "[BETA] How long checks take, by policy, binding and what was done.";
    let _ = writeln!(out, "# HELP {DURATION} {help}\n# TYPE {DURATION} histogram");
    for (check, times) in checks.iter() {
        times.render(out, DURATION, POLICY_BOUNDS, &labels(check));
    }
}

/// The lines of `/metrics`. `plugins` and `steps` are those of the server that is asked.
pub(super) fn render<'a>(out: &mut String, plugins: impl Iterator<Item = (&'a str, &'a Times)>, steps: &Times) {
    const CONTROLLER: &str = "apiserver_admission_controller_admission_duration_seconds";
    const STEP: &str = "apiserver_admission_step_admission_duration_seconds";
    const WEBHOOK: &str = "apiserver_admission_webhook_admission_duration_seconds";
    let _ = writeln!(
        out,
        "# HELP {CONTROLLER} [STABLE] How long admission plug-ins take, by name, operation and kind of plug-in.\n# TYPE {CONTROLLER} histogram"
    );
    for (name, times) in plugins {
        times.render(out, CONTROLLER, &format!("name=\"{name}\","));
    }
    let _ = writeln!(
        out,
        "# HELP {STEP} [STABLE] How long the steps of admission take, by operation and step.\n# TYPE {STEP} histogram"
    );
    steps.render(out, STEP, "");
    let (name, help) =
        ("apiserver_cel_compilation_duration_seconds", "[BETA] How long it takes to compile expressions.");
    COMPILATIONS.render_alone(out, name, help, EXPRESSION_BOUNDS);
    let (name, help) =
        ("apiserver_cel_evaluation_duration_seconds", "[BETA] How long it takes to evaluate expressions.");
    EVALUATIONS.render_alone(out, name, help, EXPRESSION_BOUNDS);
    render_checks(out);
    let webhooks = WEBHOOKS.lock();
    let _ = writeln!(
        out,
        "# HELP {WEBHOOK} [STABLE] How long admission webhooks take, by name, operation and kind.\n# TYPE {WEBHOOK} histogram"
    );
    for (name, webhook) in webhooks.iter() {
        for ((kind, verb, rejected), times) in &webhook.times {
            let labels = format!("name=\"{name}\",operation=\"{verb}\",rejected=\"{rejected}\",type=\"{kind}\"");
            times.render(out, WEBHOOK, WEBHOOK_BOUNDS, &labels);
        }
    }
    out.push_str("# HELP apiserver_admission_webhook_request_total [ALPHA] Calls of admission webhooks, by name, code and whether they refused.\n# TYPE apiserver_admission_webhook_request_total counter\n");
    for (name, webhook) in webhooks.iter() {
        for ((kind, verb, code, rejected), count) in &webhook.requests {
            let _ = writeln!(
                out,
                "apiserver_admission_webhook_request_total{{code=\"{code}\",name=\"{name}\",operation=\"{verb}\",\
                 rejected=\"{rejected}\",type=\"{kind}\"}} {count}"
            );
        }
    }
    out.push_str("# HELP apiserver_admission_webhook_rejection_count [ALPHA] Requests that admission webhooks refused, by name and reason.\n# TYPE apiserver_admission_webhook_rejection_count counter\n");
    for (name, webhook) in webhooks.iter() {
        for ((kind, verb, error, code), count) in &webhook.rejections {
            let _ = writeln!(
                out,
                "apiserver_admission_webhook_rejection_count{{error_type=\"{error}\",name=\"{name}\",\
                 operation=\"{verb}\",rejection_code=\"{code}\",type=\"{kind}\"}} {count}"
            );
        }
    }
    out.push_str("# HELP apiserver_admission_webhook_fail_open_count [ALPHA] Requests let through because an admission webhook failed.\n# TYPE apiserver_admission_webhook_fail_open_count counter\n");
    for (name, webhook) in webhooks.iter() {
        for (kind, count) in &webhook.failed_open {
            let _ =
                writeln!(out, "apiserver_admission_webhook_fail_open_count{{name=\"{name}\",type=\"{kind}\"}} {count}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_refusals_are_shown_under_upstreams_names() {
        let (plugin, steps) = (Times::default(), Times::default());
        plugin.observe(Step::Admit, Verb::Create, Duration::from_millis(20), false);
        plugin.observe(Step::Admit, Verb::Create, Duration::from_secs(3), false);
        steps.observe(Step::Validate, Verb::Delete, Duration::ZERO, true);
        observe_webhook("metrics.test", false, Verb::Create, Duration::from_secs(1), Asked::Denied(700));
        observe_webhook("metrics.test", true, Verb::Create, Duration::from_secs(1), Asked::Failed { open: true });
        observe_expression(Expression::Evaluated, Duration::from_millis(1));
        observe_check("p.test", "b", "deny", "no_error", Duration::from_millis(5));
        let mut out = String::new();
        render(&mut out, [("P", &plugin)].into_iter(), &steps);
        for line in [
            "apiserver_admission_controller_admission_duration_seconds_bucket{name=\"P\",operation=\"CREATE\",rejected=\"false\",type=\"admit\",le=\"0.025\"} 1\n",
            "apiserver_admission_controller_admission_duration_seconds_bucket{name=\"P\",operation=\"CREATE\",rejected=\"false\",type=\"admit\",le=\"+Inf\"} 2\n",
            "apiserver_admission_controller_admission_duration_seconds_count{name=\"P\",operation=\"CREATE\",rejected=\"false\",type=\"admit\"} 2\n",
            "apiserver_admission_step_admission_duration_seconds_count{operation=\"DELETE\",rejected=\"true\",type=\"validate\"} 1\n",
            "apiserver_admission_webhook_request_total{code=\"600\",name=\"metrics.test\",operation=\"CREATE\",rejected=\"true\",type=\"validating\"} 1\n",
            "apiserver_admission_webhook_rejection_count{error_type=\"no_error\",name=\"metrics.test\",operation=\"CREATE\",rejection_code=\"600\",type=\"validating\"} 1\n",
            "apiserver_admission_webhook_fail_open_count{name=\"metrics.test\",type=\"admit\"} 1\n",
            "apiserver_cel_compilation_duration_seconds_bucket{le=\"0.005\"} ",
            "apiserver_cel_evaluation_duration_seconds_bucket{le=\"10\"} ",
            "apiserver_validating_admission_policy_check_total{enforcement_action=\"deny\",error_type=\"no_error\",policy=\"p.test\",policy_binding=\"b\"} 1\n",
            "apiserver_validating_admission_policy_check_duration_seconds_bucket{enforcement_action=\"deny\",error_type=\"no_error\",policy=\"p.test\",policy_binding=\"b\",le=\"0.01\"} 1\n",
        ] {
            assert!(out.contains(line), "{line}{out}");
        }
        assert!(!out.contains("UPDATE"), "what did not happen is not shown");
    }
}
