//! What a plug-in is, and the ones that are on, in order.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::Status;
use futures_util::future::{BoxFuture, join_all};
use trace::{Name, Stage};

use super::config::Settings;
use super::metrics::{self, Step, Times};
use super::table::{Row, TABLE};
use super::{Attributes, Verb};
use crate::cluster::Cluster;
use crate::config::{Authorizer, Config};
use crate::elsewhere::spent_elsewhere;

/// A plug-in's answer. Most are known at once; only those that must wait for something pay for a future.
pub(crate) enum Admitted<'a> {
    /// The plug-in has no part in this step.
    Unasked,
    Now(Result<(), Status>),
    Later(BoxFuture<'a, Result<(), Status>>),
}

impl From<Result<(), Status>> for Admitted<'_> {
    fn from(outcome: Result<(), Status>) -> Self {
        Admitted::Now(outcome)
    }
}

pub(super) fn admitted<'a>() -> Admitted<'a> {
    Admitted::Now(Ok(()))
}

pub(super) fn later<'a>(future: impl Future<Output = Result<(), Status>> + Send + 'a) -> Admitted<'a> {
    Admitted::Later(Box::pin(future))
}

/// A plug-in writes the hook it needs; only that one is timed, counted and seen in the trace.
pub(crate) trait Plugin: Send + Sync {
    /// May change the object.
    fn admit<'a>(&'a self, _cluster: &'a Arc<Cluster>, _attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        Admitted::Unasked
    }

    /// Sees the final object and may only refuse.
    fn validate<'a>(&'a self, _cluster: &'a Arc<Cluster>, _attributes: &'a Attributes<'_>) -> Admitted<'a> {
        Admitted::Unasked
    }

    /// Work beside the requests, for as long as the server runs.
    fn background(&self, _cluster: &Arc<Cluster>) -> Option<BoxFuture<'static, ()>> {
        None
    }
}

/// Whether these flags turn a plug-in on.
fn is_enabled(name: &str, enabled: &[String], disabled: &[String]) -> bool {
    TABLE.iter().any(|row| row.name == name && is_on(row, enabled, disabled))
}

/// What whoever starts a server like this should know.
pub(crate) fn warnings(config: &Config) -> Vec<&'static str> {
    let restricts_nodes =
        is_enabled("NodeRestriction", &config.enable_admission_plugins, &config.disable_admission_plugins);
    let knows_nodes = config.authorizers.iter().any(|authorizer| matches!(authorizer, Authorizer::Node));
    let unrestricted = "authorization mode Node without the NodeRestriction admission plug-in: \
                        the credential of one node can change every node and every pod";
    if knows_nodes && !restricts_nodes { vec![unrestricted] } else { Vec::new() }
}

fn is_on(row: &Row, enabled: &[String], disabled: &[String]) -> bool {
    let named = |list: &[String]| list.iter().any(|name| name == row.name);
    (row.default || named(enabled)) && !named(disabled)
}

/// The plug-ins that are on.
pub(crate) struct Chain {
    plugins: Vec<Named>,
    /// Of all of them together.
    times: Times,
}

struct Named {
    name: &'static str,
    /// What the trace calls it.
    traced: Name,
    plugin: Box<dyn Plugin>,
    /// Its time is spent in servers elsewhere.
    asks_webhooks: bool,
    times: Times,
}

impl Named {
    fn observe(&self, step: Step, verb: Verb, took: Duration, rejected: bool) {
        self.times.observe(step, verb, took, rejected);
        if self.asks_webhooks {
            spent_elsewhere(took);
        }
    }
}

impl Chain {
    /// Applies `--enable-admission-plugins`, `--disable-admission-plugins` and `--admission-control-config-file`.
    pub(crate) fn new(enabled: &[String], disabled: &[String], file: Option<&Path>) -> anyhow::Result<Self> {
        let known = |name: &str| TABLE.iter().any(|row| row.name == name);
        for (flag, names) in [("enable", enabled), ("disable", disabled)] {
            if let Some(name) = names.iter().find(|name| !known(name)) {
                anyhow::bail!("{flag}-admission-plugins plugin {name:?} is unknown");
            }
        }
        let both: Vec<&str> = enabled.iter().filter(|name| disabled.contains(name)).map(String::as_str).collect();
        if !both.is_empty() {
            anyhow::bail!("[{}] in enable-admission-plugins and disable-admission-plugins overlapped", both.join(" "));
        }
        let mut settings = file.map(Settings::load).transpose()?.unwrap_or_default();
        let mut plugins = Vec::new();
        for row in TABLE {
            if is_on(row, enabled, disabled) {
                let made = (row.make)(settings.take(row.name));
                let plugin =
                    made.map_err(|error| error.context(format!("couldn't init admission plugin {:?}", row.name)))?;
                plugins.push(Named {
                    name: row.name,
                    traced: Name::new(row.name),
                    plugin,
                    asks_webhooks: matches!(row.name, "MutatingAdmissionWebhook" | "ValidatingAdmissionWebhook"),
                    times: Times::default(),
                });
            }
        }
        Ok(Self { plugins, times: Times::default() })
    }

    /// What the plug-ins want to run beside the requests.
    pub(crate) fn background(&self, cluster: &Arc<Cluster>) -> BoxFuture<'static, ()> {
        let works: Vec<_> = self.plugins.iter().filter_map(|named| named.plugin.background(cluster)).collect();
        Box::pin(async move {
            join_all(works).await;
        })
    }

    pub(crate) async fn admit(&self, cluster: &Arc<Cluster>, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let (started, verb) = (Instant::now(), attributes.verb);
        let outcome = self.admit_twice(cluster, attributes).await;
        self.times.observe(Step::Admit, verb, started.elapsed(), outcome.is_err());
        outcome
    }

    async fn admit_twice(&self, cluster: &Arc<Cluster>, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        self.admit_once(cluster, attributes).await?;
        if attributes.reinvocation.is_wanted() {
            attributes.reinvocation.begin_second_round();
            self.admit_once(cluster, attributes).await?;
        }
        Ok(())
    }

    async fn admit_once(&self, cluster: &Arc<Cluster>, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let verb = attributes.verb;
        let mut started = Instant::now();
        trace::mark_at(started);
        for named in &self.plugins {
            let outcome = match named.plugin.admit(cluster, attributes) {
                Admitted::Unasked => continue,
                Admitted::Now(outcome) => outcome,
                Admitted::Later(future) => future.await,
            };
            let ended = Instant::now();
            trace::lap_at(Stage::Mutate, named.traced, outcome.is_err(), ended);
            named.observe(Step::Admit, verb, ended - started, outcome.is_err());
            started = ended;
            outcome?;
        }
        Ok(())
    }

    pub(crate) async fn validate(&self, cluster: &Arc<Cluster>, attributes: &Attributes<'_>) -> Result<(), Status> {
        let begun = Instant::now();
        let mut started = begun;
        let mut outcome = Ok(());
        trace::mark_at(begun);
        for named in &self.plugins {
            outcome = match named.plugin.validate(cluster, attributes) {
                Admitted::Unasked => continue,
                Admitted::Now(outcome) => outcome,
                Admitted::Later(future) => future.await,
            };
            let ended = Instant::now();
            trace::lap_at(Stage::Validate, named.traced, outcome.is_err(), ended);
            named.observe(Step::Validate, attributes.verb, ended - started, outcome.is_err());
            started = ended;
            if outcome.is_err() {
                break;
            }
        }
        self.times.observe(Step::Validate, attributes.verb, begun.elapsed(), outcome.is_err());
        outcome
    }

    /// Adds what was counted to `/metrics`.
    pub(crate) fn render_metrics(&self, out: &mut String) {
        metrics::render(out, self.plugins.iter().map(|named| (named.name, &named.times)), &self.times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Storage;

    #[test]
    fn flags_are_checked() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (enabled, disabled, problem) in [
            (list(&["AlwaysPullImages"]), list(&["Priority"]), None),
            (list(&["Nonsense"]), list(&[]), Some("enable-admission-plugins plugin \"Nonsense\" is unknown")),
            (list(&[]), list(&["Nonsense"]), Some("disable-admission-plugins plugin \"Nonsense\" is unknown")),
            (
                list(&["Priority"]),
                list(&["Priority"]),
                Some("[Priority] in enable-admission-plugins and disable-admission-plugins overlapped"),
            ),
        ] {
            let found = Chain::new(&enabled, &disabled, None).err().map(|error| error.to_string());
            assert_eq!(found.as_deref(), problem);
        }
    }

    #[test]
    fn security_nodes_without_restrictions_are_warned_of() {
        let mut config = Config::new(Storage::Embedded("/nowhere".into()));
        let warns = |config: &Config| warnings(config).iter().any(|warning| warning.contains("NodeRestriction"));
        config.authorizers = vec![Authorizer::Rbac];
        assert!(!warns(&config));
        config.authorizers.push(Authorizer::Node);
        assert!(warns(&config));
        config.enable_admission_plugins = vec!["NodeRestriction".to_owned()];
        assert!(!warns(&config));
    }
}
