//! From configured sets of plug-ins to profiles: defaults merged, points resolved, plug-ins made.

use std::collections::HashMap;
use std::sync::Arc;

use super::file::{Configuration, ConfigurationError};
use super::{PluginRef, PluginSet, Plugins, SchedulerProfile};
use crate::framework::{Event, Plugin, Point, Profile, Rejection};
use crate::plugins::{Context, PLUGINS};
use crate::pod::{self, PodInfo};
use crate::queue::Advice;

/// Upstream has them, this build does not: naming them is no mistake.
const ABSENT: &[&str] = &["DynamicResources", "NodeDeclaredFeatures"];

/// Upstream's plug-ins for groups of pods, which are off there as well.
const GROUPS: &[&str] = &["GangScheduling", "PodGroupPodsCount", "TopologyPlacementGenerator"];

/// The profiles of the process, by scheduler name.
pub(crate) struct Profiles {
    by_name: HashMap<String, Arc<Profile>>,
    /// All profiles sort the queue alike; this is the first.
    first: Arc<Profile>,
}

impl Profiles {
    /// The profile for a pod; None if the pod is for another scheduler.
    pub(crate) fn of(&self, pod: &api::cached::Pod) -> Option<&Arc<Profile>> {
        self.by_name.get(pod::scheduler_name(pod))
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Profile>> {
        self.by_name.values()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.by_name.keys()
    }
}

impl Advice for Profiles {
    fn admit(&self, pod: &PodInfo) -> Result<(), Rejection> {
        let mut plugins = self.of(&pod.pod).into_iter().flat_map(|profile| profile.at(Point::PreEnqueue));
        plugins.try_for_each(|plugin| plugin.pre_enqueue(pod))
    }

    fn compare(&self, one: &PodInfo, other: &PodInfo) -> std::cmp::Ordering {
        let mut plugins = self.first.at(Point::QueueSort);
        plugins.next().map_or(std::cmp::Ordering::Equal, |plugin| plugin.compare(one, other))
    }

    fn may_help(&self, pod: &PodInfo, plugin: &str, event: &Event) -> Option<bool> {
        let Some(profile) = self.of(&pod.pod) else { return Some(false) };
        profile.plugin(plugin).map(|plugin| plugin.may_help(pod, event))
    }
}

pub(crate) fn build(configuration: &Configuration, context: &Context) -> Result<Profiles, ConfigurationError> {
    let mut by_name = HashMap::new();
    let mut first = None;
    for (index, configured) in configuration.profiles.iter().enumerate() {
        let profile = Arc::new(one(configured, index, context)?);
        first.get_or_insert_with(|| profile.clone());
        by_name.insert(profile.name.clone(), profile);
    }
    let first = first.ok_or_else(|| ConfigurationError::Invalid("profiles: Required value".into()))?;
    Ok(Profiles { by_name, first })
}

fn one(configured: &SchedulerProfile, index: usize, context: &Context) -> Result<Profile, ConfigurationError> {
    let custom = configured.plugins.clone().unwrap_or_default();
    let everywhere = merged_defaults(&custom.multi_point);
    let name = configured.scheduler_name.clone().unwrap_or_default();
    let mut made: HashMap<&'static str, Arc<dyn Plugin>> = HashMap::new();
    let mut make = |plugin: &str| -> Result<Option<Arc<dyn Plugin>>, ConfigurationError> {
        if ABSENT.contains(&plugin) {
            return Ok(None);
        }
        if GROUPS.contains(&plugin) {
            return Err(ConfigurationError::Invalid(format!(
                "initializing profiles: plugin {plugin:?} is not supported: pods are placed one by one"
            )));
        }
        let Some((known, _, make)) = PLUGINS.iter().find(|(known, ..)| *known == plugin) else {
            return Err(ConfigurationError::Invalid(format!(
                "initializing profiles: plugin {plugin:?} does not exist"
            )));
        };
        if let Some(made) = made.get(known) {
            return Ok(Some(made.clone()));
        }
        let args = configured.plugin_config.iter().find(|config| config.name == plugin).map(|config| &config.args);
        let plugin = make(args, context).map_err(|error| {
            ConfigurationError::Invalid(format!("initializing profiles: initializing plugin {known:?}: {error}"))
        })?;
        made.insert(known, plugin.clone());
        Ok(Some(plugin))
    };
    let mut enabled = Vec::new();
    for (point, set) in points(&custom) {
        let mut plugins: Vec<(Arc<dyn Plugin>, i64)> = Vec::new();
        for PluginRef { name, weight } in resolve(set, &everywhere) {
            let Some(plugin) = make(&name)? else { continue };
            // A plug-in enabled everywhere is asked where it has something to say; one enabled here must have.
            if !plugin.points().contains(&point) {
                if set.enabled.iter().any(|named| named.name == name) {
                    let message = format!("plugin {name:?} does not extend {point:?} plugin");
                    return Err(ConfigurationError::Invalid(message));
                }
                continue;
            }
            plugins.push((plugin, weight.filter(|weight| *weight != 0).unwrap_or(1)));
        }
        enabled.push((point, plugins));
    }
    let count =
        |wanted: Point| enabled.iter().filter(|(point, _)| *point == wanted).map(|(_, list)| list.len()).sum::<usize>();
    match (count(Point::QueueSort), count(Point::Bind)) {
        (1, 0) => return Err(ConfigurationError::Invalid("at least one bind plugin is needed".into())),
        (1, _) => {}
        (count, _) => {
            let message = format!(
                "only one queue sort plugin required for profile with scheduler name {name:?}, but got {count}"
            );
            return Err(ConfigurationError::Invalid(message));
        }
    }
    Ok(Profile::new(name, index, configured.percentage_of_nodes_to_score, enabled))
}

fn points(plugins: &Plugins) -> [(Point, &PluginSet); 12] {
    [
        (Point::PreEnqueue, &plugins.pre_enqueue),
        (Point::QueueSort, &plugins.queue_sort),
        (Point::PreFilter, &plugins.pre_filter),
        (Point::Filter, &plugins.filter),
        (Point::PostFilter, &plugins.post_filter),
        (Point::PreScore, &plugins.pre_score),
        (Point::Score, &plugins.score),
        (Point::Reserve, &plugins.reserve),
        (Point::Permit, &plugins.permit),
        (Point::PreBind, &plugins.pre_bind),
        (Point::Bind, &plugins.bind),
        (Point::PostBind, &plugins.post_bind),
    ]
}

/// The default plug-ins, with what configuration changes everywhere (`mergePluginSet`, v1.36).
fn merged_defaults(custom: &PluginSet) -> Vec<PluginRef> {
    let is_disabled = |name: &str| custom.disabled.iter().any(|plugin| plugin.name == name || plugin.name == "*");
    let mut merged = Vec::new();
    for (name, weight, _) in PLUGINS.iter().filter(|(name, ..)| !is_disabled(name)) {
        let replaced = custom.enabled.iter().find(|plugin| plugin.name == *name).cloned();
        merged.push(replaced.unwrap_or_else(|| PluginRef { name: (*name).into(), weight: Some(*weight) }));
    }
    for plugin in &custom.enabled {
        if !merged.iter().any(|other| other.name == plugin.name) {
            merged.push(plugin.clone());
        }
    }
    merged
}

/// The plug-ins of one point: those enabled here whose place is overridden first, then those enabled everywhere that are not
/// disabled here, then the others enabled here.
fn resolve(here: &PluginSet, everywhere: &[PluginRef]) -> Vec<PluginRef> {
    let is_everywhere = |plugin: &&PluginRef| everywhere.iter().any(|other| other.name == plugin.name);
    let is_here = |plugin: &&PluginRef| here.enabled.iter().any(|other| other.name == plugin.name);
    let is_disabled =
        |plugin: &&PluginRef| here.disabled.iter().any(|other| other.name == "*" || other.name == plugin.name);
    let overriding = here.enabled.iter().filter(is_everywhere);
    let general = everywhere.iter().filter(|plugin| !is_disabled(plugin) && !is_here(plugin));
    let others = here.enabled.iter().filter(|plugin| !is_everywhere(plugin));
    overriding.chain(general).chain(others).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn context() -> Context {
        Context { catalogue: Arc::default(), client: None, volumes: None, ignored_resources: Vec::new() }
    }

    fn describe(text: &str) -> String {
        let text = format!("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n{text}");
        let built = Configuration::parse(&text).and_then(|configuration| build(&configuration, &context()));
        let profiles = match built {
            Ok(profiles) => profiles,
            Err(error) => return error.to_string(),
        };
        let mut profiles: Vec<_> = profiles.by_name.values().collect();
        profiles.sort_by_key(|profile| profile.index);
        let names = |plugins: &mut dyn Iterator<Item = &Arc<dyn Plugin>>| {
            plugins.map(|plugin| plugin.name()).collect::<Vec<_>>().join(" ")
        };
        let mut lines = Vec::new();
        for profile in profiles {
            let scores = profile.scorers.iter().map(|scorer| format!("{}={}", scorer.plugin.name(), scorer.weight));
            lines.push(format!("{}: filter {}", profile.name, names(&mut profile.at(Point::Filter))));
            lines.push(format!("  score {}", scores.collect::<Vec<_>>().join(" ")));
        }
        lines.join("\n")
    }

    /// The plug-ins of v1.36.
    const UPSTREAM: &str = "
        DefaultBinder DefaultPreemption DynamicResources GangScheduling ImageLocality InterPodAffinity NodeAffinity
        NodeDeclaredFeatures NodeName NodePorts NodeResourcesBalancedAllocation NodeResourcesFit NodeUnschedulable
        NodeVolumeLimits PodGroupPodsCount PodTopologySpread PrioritySort SchedulingGates TaintToleration
        TopologyPlacementGenerator VolumeBinding VolumeRestrictions VolumeZone
    ";

    #[test]
    fn every_plug_in_of_upstream_has_an_answer() {
        let ours = PLUGINS.iter().map(|(name, ..)| *name).chain(ABSENT.iter().chain(GROUPS).copied());
        let ours: std::collections::BTreeSet<&str> = ours.collect();
        assert_eq!(ours, UPSTREAM.split_whitespace().collect());
        let asked = describe("profiles: [{plugins: {multiPoint: {enabled: [{name: GangScheduling}]}}}]");
        assert!(asked.contains("is not supported: pods are placed one by one"), "{asked}");
    }

    #[test]
    fn without_configuration_the_default_plugins_decide() {
        expect![[r#"
            default-scheduler: filter NodeUnschedulable NodeName TaintToleration NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity
              score TaintToleration=3 NodeAffinity=2 NodeResourcesFit=1 PodTopologySpread=2 InterPodAffinity=2 NodeResourcesBalancedAllocation=1 ImageLocality=1"#]]
        .assert_eq(&describe(""));
    }

    #[test]
    fn profiles_change_what_is_enabled() {
        expect![[r#"
            one: filter NodeName NodeResourcesFit
              score NodeResourcesFit=7
            two: filter NodeResourcesFit NodeName
              score NodeResourcesFit=1"#]]
        .assert_eq(&describe(
            r#"
profiles:
- schedulerName: one
  plugins:
    multiPoint:
      enabled: [{name: PrioritySort}, {name: DefaultBinder}, {name: NodeName}, {name: NodeResourcesFit, weight: 7}]
      disabled: [{name: "*"}]
- schedulerName: two
  plugins:
    multiPoint:
      enabled: [{name: PrioritySort}, {name: DefaultBinder}, {name: NodeName}, {name: NodeResourcesFit}]
      disabled: [{name: "*"}]
    filter:
      enabled: [{name: NodeResourcesFit}]
"#,
        ));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            (
                "percentageOfNodesToScore: 101",
                "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
            ),
            ("profiles: [{schedulerName: a}, {schedulerName: a}]", "profiles[1].schedulerName: Duplicate value: \"a\""),
            (
                "profiles: [{schedulerName: a, plugins: {filter: {enabled: [{name: Nonsense}]}}}]",
                "initializing profiles: plugin \"Nonsense\" does not exist",
            ),
            (
                "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]",
                "initializing profiles: initializing plugin \"InterPodAffinity\": hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]",
            ),
            (
                "profiles: [{plugins: {score: {enabled: [{name: NodeName}]}}}]",
                "plugin \"NodeName\" does not extend Score plugin",
            ),
            (
                "podInitialBackoffSeconds: 20",
                "podMaxBackoffSeconds: Invalid value: 10: must be greater than or equal to PodInitialBackoffSeconds",
            ),
            (
                "extenders: [{urlPrefix: x, prioritizeVerb: p}]",
                "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
            ),
        ] {
            assert_eq!(describe(text), expected, "{text}");
        }
    }
}
