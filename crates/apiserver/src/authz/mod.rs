//! Authorization: may this user do this? A union of authorizers; the first that allows or denies decides.

mod abac;
pub(crate) mod bootstrap_policy;
mod conditions;
pub(crate) mod config_file;
pub(crate) mod escalation;
mod feed;
mod node;
pub(crate) mod rbac;
mod webhook;

use std::sync::Arc;

use api::{GroupResource, Status, UserInfo};
use k8s_openapi::api::rbac::v1::PolicyRule;
use registry::Verb;
use serde_json::{Map, Value, json};
use tls::Reloading;

use crate::config::{Authorizer, Config};
use crate::request_info::RequestInfo;
use crate::watch_cache::Caches;

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    pub is_resource: bool,
    pub verb: Verb,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// Selectors of a list, watch or deletecollection, as written.
    pub field_selector: String,
    pub label_selector: String,
    /// For requests that are not about a resource.
    pub path: String,
}

impl From<&RequestInfo> for Attributes {
    fn from(info: &RequestInfo) -> Self {
        let selects = info.verb.selects();
        let selector = |name: &str| info.query.get(name).filter(|_| selects).unwrap_or_default().to_owned();
        Self {
            is_resource: info.is_resource,
            verb: info.verb.clone(),
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            field_selector: selector("fieldSelector"),
            label_selector: selector("labelSelector"),
            path: info.path.clone(),
        }
    }
}

/// The outcome of the union.
#[derive(Clone, Debug, Default)]
pub(crate) struct Decision {
    pub(crate) allowed: bool,
    /// Refused for good: not even another authorizer could have allowed it.
    pub(crate) denied: bool,
    pub(crate) reason: String,
    /// The authorizer that decided, as upstream names its kind.
    pub(crate) by: Option<&'static str>,
}

/// The outcome of one authorizer, with its reason.
pub(crate) enum Opinion {
    Allow(String),
    Deny(String),
    None(String),
}

enum Mode {
    AlwaysAllow,
    AlwaysDeny,
    Abac(Arc<abac::Abac>),
    Rbac,
    Node(Arc<node::NodeAuthorizer>),
    Webhook(Box<webhook::Webhook>),
}

impl Mode {
    fn kind(&self) -> &'static str {
        match self {
            Mode::AlwaysAllow => "AlwaysAllow",
            Mode::AlwaysDeny => "AlwaysDeny",
            Mode::Abac(_) => "ABAC",
            Mode::Rbac => "RBAC",
            Mode::Node(_) => "Node",
            Mode::Webhook(_) => "Webhook",
        }
    }
}

/// The authorizers in order, and RBAC's index, which also answers who holds which rights.
pub(crate) struct Authorizers {
    modes: Modes,
    pub(crate) rbac: rbac::Rbac,
}

enum Modes {
    Fixed(Arc<Vec<Mode>>),
    /// As `--authorization-config` is now.
    Followed(Reloading<Vec<Mode>>),
}

impl Modes {
    fn get(&self) -> Arc<Vec<Mode>> {
        match self {
            Modes::Fixed(modes) => modes.clone(),
            Modes::Followed(file) => file.get(),
        }
    }
}

/// What outlives a change of the file. Only what was there at the start can be there later.
struct Lasting {
    node: Option<Arc<node::NodeAuthorizer>>,
    abac: Option<Arc<abac::Abac>>,
    rbac: bool,
    /// Anonymous requests are off from the start where this is on.
    always_allow: bool,
}

impl Lasting {
    fn modes(&self, authorizers: &[Authorizer]) -> anyhow::Result<Vec<Mode>> {
        let absent = |name: &str| anyhow::anyhow!("{name} cannot be added while the server runs");
        let mode = |authorizer: &Authorizer| {
            Ok(match authorizer {
                Authorizer::AlwaysAllow if self.always_allow => Mode::AlwaysAllow,
                Authorizer::AlwaysAllow => return Err(absent("AlwaysAllow")),
                Authorizer::AlwaysDeny => Mode::AlwaysDeny,
                Authorizer::Rbac if self.rbac => Mode::Rbac,
                Authorizer::Rbac => return Err(absent("RBAC")),
                Authorizer::Node => Mode::Node(self.node.clone().ok_or_else(|| absent("Node"))?),
                Authorizer::Abac => Mode::Abac(self.abac.clone().ok_or_else(|| absent("ABAC"))?),
                Authorizer::Webhook(config) => Mode::Webhook(Box::new(webhook::Webhook::new(config.clone())?)),
            })
        };
        authorizers.iter().map(mode).collect()
    }
}

impl Authorizers {
    pub(crate) fn new(config: &Config, caches: &Caches) -> anyhow::Result<Self> {
        let has = |wanted: fn(&Authorizer) -> bool| config.authorizers.iter().any(wanted);
        let abac = match (has(|one| matches!(one, Authorizer::Abac)), &config.authorization_policy_file) {
            (false, _) => None,
            (true, Some(path)) => Some(Arc::new(abac::Abac::load(path)?)),
            (true, None) => anyhow::bail!("authorization-mode ABAC's authorization policy file not passed"),
        };
        let node = has(|one| matches!(one, Authorizer::Node)).then(|| Arc::new(node::NodeAuthorizer::new(caches)));
        let rbac = has(|one| matches!(one, Authorizer::Rbac));
        let lasting = Lasting { node, abac, rbac, always_allow: config.allows_everything() };
        let modes = match config.authorization_config_file.clone() {
            None => Modes::Fixed(Arc::new(lasting.modes(&config.authorizers)?)),
            Some(file) => Modes::Followed(Reloading::new(vec![file], move |files| {
                let mut authorizers = Vec::new();
                for file in files {
                    authorizers.extend(config_file::load(file)?);
                }
                lasting.modes(&authorizers)
            })?),
        };
        Ok(Self { modes, rbac: rbac::Rbac::new(caches) })
    }

    /// How often the file of `--authorization-config` was read again; none without that flag.
    pub(crate) fn reloads(&self) -> Option<tls::Reloads> {
        match &self.modes {
            Modes::Fixed(_) => None,
            Modes::Followed(file) => Some(file.reloads()),
        }
    }

    pub(crate) fn uses_rbac(&self) -> bool {
        self.modes.get().iter().any(|mode| matches!(mode, Mode::Rbac))
    }

    pub(crate) async fn decide(&self, user: &UserInfo, attributes: &Attributes) -> Decision {
        // The way in when roles are broken, as upstream's privileged group.
        if user.in_group(api::user::MASTERS) {
            return Decision { allowed: true, ..Default::default() };
        }
        let mut reasons = Vec::new();
        for mode in self.modes.get().iter() {
            let opinion = match mode {
                Mode::AlwaysAllow => Opinion::Allow(String::new()),
                Mode::AlwaysDeny => Opinion::None("Everything is forbidden.".to_owned()),
                Mode::Abac(abac) => abac.decide(user, attributes),
                Mode::Rbac => self.rbac.decide(user, attributes),
                Mode::Node(node) => node.decide(user, attributes),
                Mode::Webhook(webhook) => Box::pin(webhook.decide(user, attributes)).await,
            };
            match opinion {
                Opinion::Allow(reason) => {
                    return Decision { allowed: true, denied: false, reason, by: Some(mode.kind()) };
                }
                Opinion::Deny(reason) => {
                    reasons.push(reason);
                    return Decision { allowed: false, denied: true, reason: joined(reasons), by: Some(mode.kind()) };
                }
                Opinion::None(reason) => reasons.push(reason),
            }
        }
        Decision { reason: joined(reasons), ..Default::default() }
    }

    /// Lets the request pass or answers 403 in upstream's words.
    pub(crate) async fn require(&self, user: &UserInfo, attributes: &Attributes) -> Result<Decision, Status> {
        let decision = self.decide(user, attributes).await;
        if decision.allowed {
            return Ok(decision);
        }
        Err(refusal(user, attributes, &decision.reason))
    }

    /// As [`Authorizers::require`], and a right that was given by a finished write counts at once.
    pub(crate) async fn require_fresh(
        &self,
        caches: &Caches,
        user: &UserInfo,
        attributes: &Attributes,
    ) -> Result<Decision, Status> {
        let decision = self.decide(user, attributes).await;
        if decision.allowed {
            return Ok(decision);
        }
        Box::pin(async {
            caches.fresh().await?;
            self.require(user, attributes).await
        })
        .await
    }

    /// The answer to a SelfSubjectRulesReview.
    pub(crate) fn rules(&self, user: &UserInfo, namespace: &str) -> Value {
        let (mut rules, mut errors) = (Vec::new(), Vec::new());
        for mode in self.modes.get().iter() {
            match mode {
                Mode::AlwaysAllow => {
                    let every = || Some(vec!["*".to_owned()]);
                    let verbs = vec!["*".to_owned()];
                    rules.push(PolicyRule {
                        verbs: verbs.clone(),
                        api_groups: every(),
                        resources: every(),
                        ..Default::default()
                    });
                    rules.push(PolicyRule { verbs, non_resource_urls: every(), ..Default::default() });
                }
                Mode::AlwaysDeny => {}
                Mode::Abac(abac) => rules.extend(abac.rules_for(user, namespace)),
                Mode::Rbac => {
                    let (found, problems) = self.rbac.rules_for(user, namespace);
                    rules.extend(found);
                    errors.extend(problems);
                }
                Mode::Node(_) if !node::is_node(user) => {}
                Mode::Node(_) => errors.push("node authorizer does not support user rule resolution".to_owned()),
                Mode::Webhook(_) => errors.push("webhook authorizer does not support user rule resolution".to_owned()),
            }
        }
        rules_status(&rules, &errors)
    }
}

fn joined(mut reasons: Vec<String>) -> String {
    reasons.retain(|reason| !reason.is_empty());
    reasons.join("\n")
}

fn rules_status(rules: &[PolicyRule], errors: &[String]) -> Value {
    let (mut resource, mut path) = (Vec::new(), Vec::new());
    for rule in rules {
        let mut item = Map::new();
        let lists = [
            ("verbs", Some(&rule.verbs)),
            ("apiGroups", rule.api_groups.as_ref()),
            ("resources", rule.resources.as_ref()),
            ("resourceNames", rule.resource_names.as_ref()),
            ("nonResourceURLs", rule.non_resource_urls.as_ref()),
        ];
        for (name, list) in lists {
            if let Some(list) = list.filter(|list| !list.is_empty()) {
                item.insert(name.to_owned(), json!(list));
            }
        }
        if item.contains_key("nonResourceURLs") { &mut path } else { &mut resource }.push(Value::from(item));
    }
    let mut status = json!({"resourceRules": resource, "nonResourceRules": path, "incomplete": !errors.is_empty()});
    match errors {
        [] => {}
        [one] => status["evaluationError"] = json!(one),
        many => status["evaluationError"] = format!("[{}]", many.join(", ")).into(),
    }
    status
}

/// 403 in upstream's words.
pub(crate) fn refusal(user: &UserInfo, attributes: &Attributes, reason: &str) -> Status {
    let mut message = denial(user, attributes);
    if !reason.is_empty() {
        message = format!("{message}: {reason}");
    }
    let resource =
        GroupResource { group: attributes.group.clone().into(), resource: attributes.resource.clone().into() };
    Status::forbidden(&resource, &attributes.name, message)
}

fn denial(user: &UserInfo, attributes: &Attributes) -> String {
    let quote = api::field::quote;
    if !attributes.is_resource {
        return format!("User {} cannot {} path {}", quote(&user.name), attributes.verb, quote(&attributes.path));
    }
    let resource = if attributes.subresource.is_empty() {
        attributes.resource.clone()
    } else {
        format!("{}/{}", attributes.resource, attributes.subresource)
    };
    let place = if attributes.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {}", quote(&attributes.namespace))
    };
    format!(
        "User {} cannot {} resource {} in API group {} {place}",
        quote(&user.name),
        attributes.verb,
        quote(&resource),
        quote(&attributes.group)
    )
}
