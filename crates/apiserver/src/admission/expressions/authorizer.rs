//! `authorizer`: whether someone may do something.
//!
//! Authorization may have to wait for a server elsewhere, expressions never wait. So a question that has no answer yet is
//! noted and ends the run; it is put afterwards, and the run repeated.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use api::UserInfo;
use cel::{Error, Opaque, Value};
use parking_lot::Mutex;

use super::super::Attributes;
use crate::authz;
use crate::cluster::Cluster;

/// What has been asked about one write, and answered.
#[derive(Clone, Default)]
pub(in crate::admission) struct Answers(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    open: Vec<Question>,
    /// By the question.
    known: HashMap<String, authz::Decision>,
}

#[derive(Clone, Debug)]
struct Question {
    user: UserInfo,
    attributes: authz::Attributes,
}

impl Answers {
    /// Puts what is open. False if nothing was, and the last run holds.
    pub(in crate::admission) async fn ask(&self, cluster: &Cluster) -> bool {
        let open = std::mem::take(&mut self.0.lock().open);
        for question in &open {
            let decision = cluster.authz.decide(&question.user, &question.attributes).await;
            self.0.lock().known.insert(format!("{question:?}"), decision);
        }
        !open.is_empty()
    }

    fn find(&self, question: Question) -> Result<Value, Error> {
        let mut book = self.0.lock();
        match book.known.get(&format!("{question:?}")) {
            Some(decision) => Ok(Value::Opaque(Arc::new(Decision(decision.clone())))),
            None => {
                book.open.push(question);
                Err(Error::pending())
            }
        }
    }
}

pub(super) struct Authorizer {
    user: UserInfo,
    answers: Answers,
}

impl Authorizer {
    pub(super) fn new(user: &UserInfo, answers: &Answers) -> Self {
        Self { user: user.clone(), answers: answers.clone() }
    }
}

/// A question that is not complete yet. `kind` says what may be added.
#[derive(Clone)]
struct Check {
    kind: &'static str,
    question: Question,
    answers: Answers,
}

struct Decision(authz::Decision);

/// `authorizer.requestResource`: about the resource that is being written.
pub(super) fn request_resource(attributes: &Attributes<'_>, answers: &Answers) -> Value {
    let asked = authz::Attributes {
        is_resource: true,
        group: attributes.resource.group.to_string(),
        version: "*".to_owned(),
        resource: attributes.resource.plural.to_string(),
        subresource: attributes.subresource.to_owned(),
        namespace: attributes.namespace.to_owned(),
        name: attributes.name.to_owned(),
        ..authz::Attributes::default()
    };
    let question = Question { user: attributes.user().clone(), attributes: asked };
    Value::Opaque(Arc::new(Check { kind: RESOURCE, question, answers: answers.clone() }))
}

const PATH: &str = "kubernetes.authorization.PathCheck";
const GROUP: &str = "kubernetes.authorization.GroupCheck";
const RESOURCE: &str = "kubernetes.authorization.ResourceCheck";

impl Opaque for Authorizer {
    fn type_name(&self) -> &'static str {
        "kubernetes.authorization.Authorizer"
    }

    fn call(&self, function: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
        let about = |kind, attributes| {
            let question = Question { user: self.user.clone(), attributes };
            Ok(Value::Opaque(Arc::new(Check { kind, question, answers: self.answers.clone() })))
        };
        Some(match (function, arguments) {
            ("path", [Value::String(path)]) if path.is_empty() => Err(Error::new("path must not be empty")),
            ("path", [Value::String(path)]) => {
                about(PATH, authz::Attributes { path: path.to_string(), ..authz::Attributes::default() })
            }
            ("group", [Value::String(group)]) => about(
                GROUP,
                authz::Attributes {
                    is_resource: true,
                    group: group.to_string(),
                    version: "*".to_owned(),
                    ..authz::Attributes::default()
                },
            ),
            ("serviceAccount", [Value::String(namespace), Value::String(name)]) => {
                if !api::validation::is_dns1123_subdomain(name) {
                    return Some(Err(Error::new("Invalid service account name")));
                }
                if !api::validation::is_dns1123_label(namespace) {
                    return Some(Err(Error::new("Invalid service account namespace")));
                }
                let user = UserInfo {
                    name: format!("system:serviceaccount:{namespace}:{name}"),
                    groups: vec![
                        "system:serviceaccounts".to_owned(),
                        format!("system:serviceaccounts:{namespace}"),
                        api::user::AUTHENTICATED.to_owned(),
                    ],
                    ..UserInfo::default()
                };
                Ok(Value::Opaque(Arc::new(Authorizer { user, answers: self.answers.clone() })))
            }
            _ => return None,
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Opaque for Check {
    fn type_name(&self) -> &'static str {
        self.kind
    }

    fn call(&self, function: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
        let [Value::String(argument)] = arguments else { return None };
        let mut next = self.clone();
        let asked = &mut next.question.attributes;
        let argument = argument.to_string();
        match (self.kind, function) {
            (GROUP, "resource") if argument.is_empty() => {
                return Some(Err(Error::new("resource must not be empty")));
            }
            (GROUP, "resource") => {
                asked.resource = argument;
                next.kind = RESOURCE;
            }
            (RESOURCE, "subresource") => asked.subresource = argument,
            (RESOURCE, "namespace") => asked.namespace = argument,
            (RESOURCE, "name") => asked.name = argument,
            (RESOURCE, "fieldSelector") => asked.field_selector = argument,
            (RESOURCE, "labelSelector") => asked.label_selector = argument,
            (RESOURCE | PATH, "check") => {
                asked.verb = argument.into();
                return Some(self.answers.find(next.question));
            }
            _ => return None,
        }
        Some(Ok(Value::Opaque(Arc::new(next))))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Opaque for Decision {
    fn type_name(&self) -> &'static str {
        "kubernetes.authorization.Decision"
    }

    fn call(&self, function: &str, _: &[Value]) -> Option<Result<Value, Error>> {
        Some(Ok(match function {
            "allowed" => Value::Bool(self.0.allowed),
            "reason" => Value::String(self.0.reason.as_str().into()),
            // What goes wrong on the way is a reason here, not an error.
            "errored" => Value::Bool(false),
            "error" => Value::String("".into()),
            _ => return None,
        }))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// They hold what nobody should find in a log.
macro_rules! named {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.type_name())
            }
        }
    )*};
}

named!(Authorizer, Check, Decision);
