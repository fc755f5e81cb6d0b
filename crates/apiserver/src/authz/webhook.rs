//! Webhook: a server elsewhere decides, asked with a SubjectAccessReview.

use api::UserInfo;
use api::selector::{FieldSelector, Operator, Selector};
use serde_json::{Value, json};

use super::conditions::{Conditions, Undecided};
use super::{Attributes, Opinion};
use crate::config::{FailurePolicy, WebhookConfig};
use crate::expiring::Expiring;
use crate::remote::{Remote, RemoteError};

pub(crate) struct Webhook {
    config: WebhookConfig,
    remote: Remote,
    conditions: Conditions,
    cache: Expiring<String, Answer>,
}

/// Why the webhook has no say.
#[derive(Debug, thiserror::Error)]
enum WebhookError {
    #[error(transparent)]
    Conditions(#[from] Undecided),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("answer is not a SubjectAccessReview with a status")]
    NotReview,
}

#[derive(Clone)]
enum Answer {
    Allow(String),
    Deny(String),
    NoOpinion(String),
}

impl Webhook {
    pub(crate) fn new(config: WebhookConfig) -> anyhow::Result<Self> {
        anyhow::ensure!(
            ["v1", "v1beta1"].contains(&config.version.as_str()),
            "unsupported version {:?} of SubjectAccessReview",
            config.version
        );
        let conditions = Conditions::new(&config.match_conditions, "matchConditions");
        let conditions = conditions.map_err(|errors| anyhow::anyhow!("{errors}"))?;
        Ok(Self { remote: Remote::from_kubeconfig(&config.config_file)?, config, conditions, cache: Expiring::new() })
    }

    pub(super) async fn decide(&self, user: &UserInfo, attributes: &Attributes) -> Opinion {
        match self.conditions.decide(user, attributes) {
            Ok(true) => {}
            Ok(false) => return Opinion::None(String::new()),
            Err(undecided) => return self.failed(&undecided.into()),
        }
        let spec = question(user, attributes);
        let key = spec.to_string();
        let answer = match self.cache.get(&key) {
            Some(known) => known,
            None => match self.ask(spec).await {
                Ok(answer) => {
                    let (reason, life) = match &answer {
                        Answer::Allow(reason) => (reason, self.config.authorized_ttl),
                        Answer::Deny(reason) | Answer::NoOpinion(reason) => (reason, self.config.unauthorized_ttl),
                    };
                    self.cache.remember(key, answer.clone(), reason.len(), life);
                    answer
                }
                Err(error) => return self.failed(&error),
            },
        };
        match answer {
            Answer::Allow(reason) => Opinion::Allow(reason),
            Answer::Deny(reason) => Opinion::Deny(reason),
            Answer::NoOpinion(reason) => Opinion::None(reason),
        }
    }

    fn failed(&self, error: &WebhookError) -> Opinion {
        tracing::warn!(webhook = self.config.name, %error, "authorization webhook failed");
        match self.config.failure_policy {
            FailurePolicy::NoOpinion => Opinion::None(String::new()),
            FailurePolicy::Deny => Opinion::Deny(String::new()),
        }
    }

    async fn ask(&self, spec: Value) -> Result<Answer, WebhookError> {
        let review = json!({
            "kind": "SubjectAccessReview",
            "apiVersion": format!("authorization.k8s.io/{}", self.config.version),
            "metadata": {},
            "spec": spec,
        });
        read(&self.remote.ask(&review, self.config.timeout).await?)
    }
}

/// Only a clear yes is one, and a no beside it wins.
fn read(answer: &Value) -> Result<Answer, WebhookError> {
    let status = &answer["status"];
    if answer["kind"] != "SubjectAccessReview" || !status.is_object() {
        return Err(WebhookError::NotReview);
    }
    // A no that cannot be read is not the absence of one.
    let is_said = |flag: &Value| flag.is_null() || flag.is_boolean();
    if !is_said(&status["allowed"]) || !is_said(&status["denied"]) {
        return Err(WebhookError::NotReview);
    }
    let reason = status["reason"].as_str().unwrap_or_default().to_owned();
    Ok(match (&status["allowed"], &status["denied"]) {
        (_, Value::Bool(true)) => Answer::Deny(reason),
        (Value::Bool(true), _) => Answer::Allow(reason),
        _ => Answer::NoOpinion(reason),
    })
}

/// The `spec` of a SubjectAccessReview.
fn question(user: &UserInfo, attributes: &Attributes) -> Value {
    let mut spec = json!({"user": user.name});
    if !user.uid.is_empty() {
        spec["uid"] = json!(user.uid);
    }
    if !user.groups.is_empty() {
        spec["groups"] = json!(user.groups);
    }
    if !user.extra.is_empty() {
        spec["extra"] = json!(user.extra);
    }
    if !attributes.is_resource {
        spec["nonResourceAttributes"] = json!({"path": attributes.path, "verb": attributes.verb});
        return spec;
    }
    let mut resource = serde_json::Map::new();
    for (key, value) in [
        ("namespace", &*attributes.namespace),
        ("verb", attributes.verb.as_str()),
        ("group", &attributes.group),
        ("version", &attributes.version),
        ("resource", &attributes.resource),
        ("subresource", &attributes.subresource),
        ("name", &attributes.name),
    ] {
        if !value.is_empty() {
            resource.insert(key.to_owned(), json!(value));
        }
    }
    let selectors = [
        ("fieldSelector", field_requirements(&attributes.field_selector)),
        ("labelSelector", label_requirements(&attributes.label_selector)),
    ];
    for (key, requirements) in selectors {
        if !requirements.is_empty() {
            resource.insert(key.to_owned(), json!({"requirements": requirements}));
        }
    }
    spec["resourceAttributes"] = resource.into();
    spec
}

pub(super) fn field_requirements(selector: &str) -> Vec<Value> {
    let Ok(selector) = FieldSelector::parse(selector) else { return Vec::new() };
    let requirement = |term: &api::selector::FieldTerm| {
        let operator = if term.equal { "In" } else { "NotIn" };
        json!({"key": term.field, "operator": operator, "values": [term.value]})
    };
    selector.terms().iter().map(requirement).collect()
}

pub(super) fn label_requirements(selector: &str) -> Vec<Value> {
    let Ok(selector) = Selector::parse(selector) else { return Vec::new() };
    let requirements = selector.requirements().iter().filter_map(|requirement| {
        let operator = match requirement.operator {
            Operator::Equals | Operator::DoubleEquals | Operator::In => "In",
            Operator::NotEquals | Operator::NotIn => "NotIn",
            Operator::Exists => "Exists",
            Operator::DoesNotExist => "DoesNotExist",
            // Comparisons have no form here; leaving one out only widens the question.
            _ => return None,
        };
        let mut value = json!({"key": requirement.key, "operator": operator});
        if !requirement.values.is_empty() {
            value["values"] = json!(requirement.values);
        }
        Some(value)
    });
    requirements.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_allows() {
        for (status, expected) in [
            (json!({"allowed": true}), "allow"),
            (json!({"allowed": true, "denied": true}), "deny"),
            (json!({"allowed": false, "denied": true}), "deny"),
            (json!({"allowed": false}), "none"),
            (json!({"allowed": null, "denied": null}), "none"),
            (json!({}), "none"),
            (Value::Null, "error"),
        ] {
            let found = match read(&json!({"kind": "SubjectAccessReview", "status": status})) {
                Ok(Answer::Allow(_)) => "allow",
                Ok(Answer::Deny(_)) => "deny",
                Ok(Answer::NoOpinion(_)) => "none",
                Err(_) => "error",
            };
            assert_eq!(found, expected, "{status}");
        }
        assert!(read(&json!({"kind": "Pod", "status": {"allowed": true}})).is_err());
    }

    #[test]
    fn security_a_no_that_cannot_be_read_is_not_passed_over() {
        for status in [
            json!({"allowed": true, "denied": "true"}),
            json!({"allowed": true, "denied": 1}),
            json!({"allowed": true, "denied": [true]}),
            json!({"allowed": "true"}),
        ] {
            assert!(read(&json!({"kind": "SubjectAccessReview", "status": status})).is_err(), "{status}");
        }
    }

    #[test]
    fn questions_say_who_and_what() {
        let attributes = Attributes {
            is_resource: true,
            verb: "list".into(),
            version: "v1".into(),
            resource: "pods".into(),
            namespace: "a".into(),
            field_selector: "spec.nodeName=n".into(),
            label_selector: "app in (x,y),!z".into(),
            ..Default::default()
        };
        let expected = json!({"user": "ann", "groups": ["dev"], "resourceAttributes": {
            "namespace": "a", "verb": "list", "version": "v1", "resource": "pods",
            "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n"]}]},
            "labelSelector": {"requirements": [{"key": "app", "operator": "In", "values": ["x", "y"]},
                {"key": "z", "operator": "DoesNotExist"}]}}});
        assert_eq!(question(&UserInfo::new("ann", &["dev"]), &attributes), expected);
        let attributes = Attributes { verb: "get".into(), path: "/metrics".into(), ..Default::default() };
        let expected = json!({"user": "ann", "nonResourceAttributes": {"path": "/metrics", "verb": "get"}});
        assert_eq!(question(&UserInfo::new("ann", &[]), &attributes), expected);
    }
}
