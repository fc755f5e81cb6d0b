//! The values of an expression's names, for one write.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use api::Status;
use cel::{Activation, Budget, Error, ErrorKind, Opaque, PER_CALL_LIMIT, Value};
use k8s_openapi::api::core::v1::Namespace;
use parking_lot::Mutex;
use registry::Resource;
use registry::admissionregistration::environment::NAMESPACE_METADATA;
use serde_json::{Map, json};

use super::super::Attributes;
use super::super::versioned::{request, versioned_object, versioned_old};
use super::Compiled;
use super::authorizer::{Answers, Authorizer, request_resource};
use crate::cluster::Cluster;

/// The object before and after, and the request, in one version.
#[derive(Clone)]
pub(in crate::admission) struct Shown {
    pub(in crate::admission) object: Value,
    old: Value,
    request: Value,
}

impl Shown {
    pub(in crate::admission) async fn new(attributes: &Attributes<'_>, resource: &Resource) -> Result<Self, Status> {
        let value = |json: Option<serde_json::Value>| json.as_ref().map_or(Value::Null, Value::from_json);
        Ok(Self {
            object: value(versioned_object(attributes, resource).await?),
            old: value(versioned_old(attributes, resource).await?),
            request: Value::from_json(&request(attributes, resource)),
        })
    }
}

/// Everything a set of expressions is evaluated on.
#[derive(Clone)]
pub(in crate::admission) struct Input {
    shown: Shown,
    pub(in crate::admission) namespace: Value,
    pub(in crate::admission) params: Value,
    authorizer: Value,
    request_resource: Value,
}

impl Input {
    pub(in crate::admission) fn new(attributes: &Attributes<'_>, shown: &Shown, answers: &Answers) -> Self {
        Self {
            shown: shown.clone(),
            namespace: Value::Null,
            params: Value::Null,
            authorizer: Value::Opaque(Arc::new(Authorizer::new(attributes.user(), answers))),
            request_resource: request_resource(attributes, answers),
        }
    }

    /// Without variables.
    pub(in crate::admission) fn scope(self) -> Scope {
        Scope { input: Arc::new(self), variables: None }
    }

    /// With variables, each of them evaluated when it is first used.
    pub(in crate::admission) fn with_variables(self, programs: &Arc<Vec<Variable>>) -> Scope {
        let input = Arc::new(self);
        let variables = Variables::new(&input, programs);
        Scope { input, variables: Some(variables) }
    }
}

/// What names stand for.
#[derive(Clone)]
pub(in crate::admission) struct Scope {
    input: Arc<Input>,
    variables: Option<Arc<Variables>>,
}

impl Scope {
    /// What variables have cost since this was last asked.
    pub(super) fn take_cost(&self) -> u64 {
        self.variables.as_ref().map_or(0, |variables| variables.cost.swap(0, Ordering::Relaxed))
    }
}

impl Activation for Scope {
    fn variable(&self, name: &str) -> Option<Value> {
        let input = &*self.input;
        Some(match name {
            "object" => input.shown.object.clone(),
            "oldObject" => input.shown.old.clone(),
            "request" => input.shown.request.clone(),
            "namespaceObject" => input.namespace.clone(),
            "params" => input.params.clone(),
            "authorizer" => input.authorizer.clone(),
            "authorizer.requestResource" => input.request_resource.clone(),
            "variables" => Value::Opaque(Arc::new(Handle(Arc::downgrade(self.variables.as_ref()?)))),
            _ => return None,
        })
    }
}

/// A variable of a policy: its name, and its expression or why it is none.
pub(in crate::admission) type Variable = (String, Compiled);

/// `variables`: evaluated on use, once.
pub(in crate::admission) struct Variables {
    myself: Weak<Variables>,
    input: Arc<Input>,
    programs: Arc<Vec<Variable>>,
    known: Mutex<HashMap<String, Result<Value, Error>>>,
    cost: AtomicU64,
}

impl Variables {
    fn new(input: &Arc<Input>, programs: &Arc<Vec<Variable>>) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            myself: myself.clone(),
            input: input.clone(),
            programs: programs.clone(),
            known: Mutex::default(),
            cost: AtomicU64::new(0),
        })
    }

    fn evaluate(&self, name: &str, program: &Compiled, budget: &Budget) -> Result<Value, Error> {
        let program = program
            .as_ref()
            .map_err(|problem| Error::new(format!("composited variable {name:?} fails to compile: {problem}")))?;
        let scope = Scope { input: self.input.clone(), variables: self.myself.upgrade() };
        let mut own = budget.nested(PER_CALL_LIMIT)?;
        let result = program.run(&scope, &mut own);
        self.cost.fetch_add(own.used(), Ordering::Relaxed);
        result.map_err(|error| match error.kind {
            ErrorKind::Pending => error,
            // What a variable runs out of is its own budget.
            _ => Error::new(format!("composited variable {name:?} fails to evaluate: {error}")),
        })
    }
}

/// `variables` as a value. It does not keep them: the value of a variable may hold it.
struct Handle(Weak<Variables>);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.type_name())
    }
}

impl Opaque for Handle {
    fn type_name(&self) -> &'static str {
        "kubernetes.variables"
    }

    fn field(&self, name: &str, budget: &mut Budget) -> Option<Result<Value, Error>> {
        let variables = self.0.upgrade()?;
        if let Some(known) = variables.known.lock().get(name) {
            return Some(known.clone());
        }
        let (_, program) = variables.programs.iter().find(|(known, _)| known == name)?;
        let result = variables.evaluate(name, program, budget);
        variables.known.lock().insert(name.to_owned(), result.clone());
        Some(result)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// The namespace of a write as expressions see it; null for objects outside of namespaces, and for namespaces.
pub(in crate::admission) async fn namespace_object(
    cluster: &Cluster,
    attributes: &Attributes<'_>,
) -> Result<Value, Status> {
    let is_namespace = attributes.resource.plural == "namespaces" && attributes.resource.group.is_empty();
    if attributes.namespace.is_empty() || is_namespace {
        return Ok(Value::Null);
    }
    let read = || cluster.objects().entry::<Namespace>("", attributes.namespace);
    let entry = match read()? {
        Some(entry) => entry,
        None => {
            // It may have been created a moment ago.
            cluster.caches.fresh().await?;
            let group = api::GroupResource::new("", "namespaces");
            read()?.ok_or_else(|| Status::not_found(&group, attributes.namespace))?
        }
    };
    let mut namespace: serde_json::Value = entry.decode()?;
    let mut metadata = Map::new();
    if let Some(all) = namespace["metadata"].as_object_mut() {
        if let Some(uid) = all.remove("uid") {
            all.insert("UID".to_owned(), uid);
        }
        for name in NAMESPACE_METADATA {
            if let Some(value) = all.remove(name) {
                metadata.insert(name.to_owned(), value);
            }
        }
    }
    let shown = json!({"metadata": metadata, "spec": namespace["spec"], "status": namespace["status"]});
    Ok(Value::from_json(&shown))
}
