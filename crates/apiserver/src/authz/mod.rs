//! Authorization: may this user do this? A union of authorizers; the first that allows or denies decides.

pub(crate) mod bootstrap_policy;
pub(crate) mod escalation;
mod node;
mod rbac;

use api::{GroupResource, Status, UserInfo};
use serde_json::{Value, json};

pub(crate) use rbac::{Rbac, covers};

use crate::chain::RequestInfo;
use crate::state::State;

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) is_resource: bool,
    pub(crate) verb: String,
    pub(crate) group: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// For requests that are not about a resource.
    pub(crate) path: String,
}

impl From<&RequestInfo> for Attributes {
    fn from(info: &RequestInfo) -> Self {
        Self {
            is_resource: info.is_resource,
            verb: info.verb.to_owned(),
            group: info.group.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            path: info.path.clone(),
        }
    }
}

/// The outcome of the union.
#[derive(Clone, Debug, Default)]
pub(crate) struct Decision {
    pub(crate) allowed: bool,
    pub(crate) reason: String,
}

/// The outcome of one authorizer.
pub(crate) enum Opinion {
    Allow(String),
    Deny(String),
    None,
}

/// `--authorization-mode`, in order.
pub(crate) enum Mode {
    AlwaysAllow,
    AlwaysDeny,
    Rbac(Rbac),
    Node,
}

pub(crate) struct Authorizers(Vec<Mode>);

impl Authorizers {
    pub(crate) fn new(modes: &[String]) -> anyhow::Result<Self> {
        let modes = modes.iter().map(|mode| match mode.as_str() {
            "AlwaysAllow" => Ok(Mode::AlwaysAllow),
            "AlwaysDeny" => Ok(Mode::AlwaysDeny),
            "RBAC" => Ok(Mode::Rbac(Rbac::default())),
            "Node" => Ok(Mode::Node),
            other => Err(anyhow::anyhow!("\"{other}\" is not a valid authorization mode")),
        });
        Ok(Self(modes.collect::<Result<_, _>>()?))
    }

    pub(crate) fn rbac(&self) -> Option<&Rbac> {
        self.0.iter().find_map(|mode| match mode {
            Mode::Rbac(rbac) => Some(rbac),
            _ => None,
        })
    }

    pub(crate) fn decide(&self, state: &State, user: &UserInfo, attributes: &Attributes) -> Decision {
        // The way in when roles are broken, as upstream's privileged group.
        if user.in_group(api::user::MASTERS) {
            return Decision { allowed: true, reason: String::new() };
        }
        let mut reasons = Vec::new();
        for mode in &self.0 {
            let opinion = match mode {
                Mode::AlwaysAllow => Opinion::Allow(String::new()),
                Mode::AlwaysDeny => Opinion::Deny("Everything is forbidden.".to_owned()),
                Mode::Rbac(rbac) => rbac.decide(state, user, attributes),
                Mode::Node => node::decide(state, user, attributes),
            };
            match opinion {
                Opinion::Allow(reason) => return Decision { allowed: true, reason },
                Opinion::Deny(reason) => {
                    reasons.push(reason);
                    break;
                }
                Opinion::None => {}
            }
        }
        reasons.retain(|reason| !reason.is_empty());
        Decision { allowed: false, reason: reasons.join("\n") }
    }

    /// Lets the request pass or answers 403 in upstream's words.
    pub(crate) fn authorize(&self, state: &State, user: &UserInfo, info: &RequestInfo) -> Result<(), Status> {
        self.require(state, user, &Attributes::from(info))
    }

    pub(crate) fn require(&self, state: &State, user: &UserInfo, attributes: &Attributes) -> Result<(), Status> {
        let decision = self.decide(state, user, attributes);
        if decision.allowed {
            return Ok(());
        }
        let mut message = denial(user, attributes);
        if !decision.reason.is_empty() {
            message = format!("{message}: {}", decision.reason);
        }
        let resource =
            GroupResource { group: attributes.group.clone().into(), resource: attributes.resource.clone().into() };
        Err(Status::forbidden(&resource, &attributes.name, message))
    }

    /// The answer to a SelfSubjectRulesReview.
    pub(crate) fn rules(&self, user: &UserInfo, namespace: &str) -> Value {
        let everything = json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        });
        if user.in_group(api::user::MASTERS) {
            return everything;
        }
        let (mut resource, mut path, mut incomplete) = (Vec::new(), Vec::new(), false);
        for mode in &self.0 {
            match mode {
                Mode::AlwaysAllow => return everything,
                Mode::AlwaysDeny => {}
                Mode::Node => incomplete = true,
                Mode::Rbac(rbac) => {
                    for rule in rbac.rules_for(user, namespace) {
                        if rule.non_resource_urls.as_ref().is_some_and(|urls| !urls.is_empty()) {
                            path.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
                        } else {
                            resource.push(json!({"verbs": rule.verbs, "apiGroups": rule.api_groups,
                                "resources": rule.resources, "resourceNames": rule.resource_names}));
                        }
                    }
                }
            }
        }
        let mut status = json!({"resourceRules": resource, "nonResourceRules": path, "incomplete": incomplete});
        if incomplete {
            status["evaluationError"] = "node authorizer does not support user rule resolution".into();
        }
        status
    }
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
