//! Tells authors of validating policies what is wrong with their expressions, once the kinds that they are about are
//! known: `status.typeChecking`, and `observedGeneration` when that was looked at.
//!
//! Upstream has a controller for it; here it stands where kinds and expressions are. A warning refuses nothing: the
//! expressions compile while the object may be anything, or the policy would not have been accepted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use api::schema::{StructRef, Type as Declared};
use cel::{Struct, Type};
use k8s_openapi::Resource as _;
use k8s_openapi::api::admissionregistration::v1::{
    ExpressionWarning, MatchResources, TypeChecking, ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec,
};
use registry::admissionregistration::environment::{Compiler, Names};
use registry::table::store_prefix;
use registry::unset::{items, or_empty};
use registry::{AnyObject, Object, Registry};

use crate::cluster::Cluster;

/// What could not be written is tried again after this long.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// A policy about more kinds is held against the first of them only.
const MOST_KINDS: usize = 10;
/// What the compiler says before its own words.
const REFUSED: &str = "compilation failed: ";

/// Looks at every change of a policy until the server stops.
pub(crate) async fn run(cluster: Arc<Cluster>) {
    let Some(cache) = cluster.caches.get(store_prefix::<ValidatingAdmissionPolicy>()) else { return };
    let mut changes = cache.subscribe();
    loop {
        changes.mark_unchanged();
        let mut is_done = true;
        for entry in cache.snapshot().objects.values() {
            // One that cannot be read is refused wherever it is needed; there is nothing to say of its types.
            let Ok(policy) = entry.read::<ValidatingAdmissionPolicy>() else { continue };
            let observed = policy.status.as_ref().and_then(|status| status.observed_generation);
            if observed == policy.metadata.generation {
                continue;
            }
            if let Err(status) = write(&cluster, &policy).await
                && !status.is_not_found()
            {
                tracing::warn!(message = status.message, name = entry.name(), "writing the status of a policy");
                is_done = false;
            }
        }
        let again = tokio::time::sleep(RETRY_INTERVAL);
        tokio::select! {
            () = cluster.stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            () = again, if !is_done => {}
        }
    }
}

async fn write(cluster: &Arc<Cluster>, policy: &ValidatingAdmissionPolicy) -> Result<(), Status> {
    let (group, plural) = (ValidatingAdmissionPolicy::GROUP, ValidatingAdmissionPolicy::URL_PATH_SEGMENT);
    let row = cluster.registry.find_any(group, plural);
    let row = row.ok_or_else(|| Status::internal("policies are not served"))?;
    let change = |old: &dyn Object| -> Result<AnyObject, Status> {
        let old = old.downcast_ref::<ValidatingAdmissionPolicy>();
        let mut policy = old.cloned().ok_or_else(|| Status::internal("not a policy"))?;
        policy.metadata.resource_version = None;
        let warnings = policy.spec.as_ref().map(|spec| warnings(&cluster.registry, spec)).unwrap_or_default();
        let generation = policy.metadata.generation;
        let status = policy.status.get_or_insert_default();
        status.observed_generation = generation;
        let expression_warnings = (!warnings.is_empty()).then_some(warnings);
        status.type_checking = Some(TypeChecking { expression_warnings });
        Ok(Box::new(policy))
    };
    let name = or_empty(&policy.metadata.name);
    cluster.own()?.modify_status(&row, "", name, Some("kube-controller-manager"), &change).await
}

/// What each expression of a policy gets wrong about each of its kinds.
fn warnings(registry: &Registry, spec: &ValidatingAdmissionPolicySpec) -> Vec<ExpressionWarning> {
    let kinds = kinds(registry, spec.match_constraints.as_ref());
    let names = Names { params: spec.param_kind.is_some(), authorizer: true, patches: false };
    let mut found: Vec<ExpressionWarning> = Vec::new();
    let compilers: Vec<(&String, Compiler)> = kinds
        .iter()
        .map(|(kind, schema)| {
            let mut compiler = Compiler::with_variables();
            compiler.object = Some(of_struct(schema));
            for variable in items(&spec.variables) {
                // What is wrong with a variable shows where it is used.
                let _ = compiler.variable(&variable.name, &variable.expression, names);
            }
            (kind, compiler)
        })
        .collect();
    let mut check = |field: String, expression: &str, names: Names, wanted: Type| {
        let problems: Vec<String> = compilers
            .iter()
            .filter_map(|(kind, compiler)| {
                let problem = compiler.compile(expression, names, std::slice::from_ref(&wanted)).err()?.to_string();
                Some(format!("{kind}: {}", problem.strip_prefix(REFUSED)?))
            })
            .collect();
        if !problems.is_empty() {
            found.push(ExpressionWarning { field_ref: field, warning: problems.join("\n") });
        }
    };
    for (i, validation) in items(&spec.validations).iter().enumerate() {
        check(format!("spec.validations[{i}].expression"), &validation.expression, names, Type::Bool);
        let message = or_empty(&validation.message_expression);
        if !message.trim().is_empty() {
            let names = Names { authorizer: false, ..names };
            check(format!("spec.validations[{i}].messageExpression"), message, names, Type::String);
        }
    }
    found
}

/// The kinds that rules name one by one, as messages call them.
fn kinds(registry: &Registry, constraints: Option<&MatchResources>) -> BTreeMap<String, StructRef> {
    let mut kinds = BTreeMap::new();
    for rule in constraints.map_or(&[][..], |constraints| items(&constraints.resource_rules)) {
        let [groups, versions, resources] = [&rule.api_groups, &rule.api_versions, &rule.resources].map(items);
        let names = groups.iter().chain(versions).chain(resources);
        if names.into_iter().any(|name| name.contains('*')) {
            continue;
        }
        for group in groups {
            for version in versions {
                let rows = resources.iter().filter_map(|resource| registry.find(group, version, resource));
                kinds.extend(rows.map(|row| (format!("{}, Kind={}", row.api_version(), row.kind), row.typed_schema())));
            }
        }
    }
    while kinds.len() > MOST_KINDS {
        kinds.pop_last();
    }
    kinds
}

/// A structure of a kind, as expressions see it.
#[derive(Debug)]
struct Fields(StructRef);

impl Struct for Fields {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn field(&self, name: &str) -> Option<Type> {
        // Names that mean something in expressions are written with underscores around them.
        let plain = name.strip_prefix("__").and_then(|name| name.strip_suffix("__")).unwrap_or(name);
        let field = self.0.field(name).or_else(|| self.0.field(plain));
        match field {
            Some(field) => Some(of_declared(&field.ty)),
            // The server's own, whether a definition speaks of them or not.
            None => (self.0.open || matches!(name, "apiVersion" | "kind" | "metadata")).then_some(Type::Dyn),
        }
    }
}

fn of_struct(schema: &StructRef) -> Type {
    Type::Struct(Arc::new(Fields(schema.clone())))
}

fn of_declared(declared: &Declared) -> Type {
    match declared {
        Declared::Any | Declared::Deduced | Declared::IntOrString | Declared::Quantity => Type::Dyn,
        Declared::Bool => Type::Bool,
        Declared::Int32 | Declared::Int64 => Type::Int,
        Declared::Number => Type::Double,
        Declared::String => Type::String,
        Declared::Bytes => Type::Bytes,
        Declared::Time => Type::Timestamp,
        Declared::List(item) => Type::list(of_declared(item)),
        Declared::Map(item) => Type::map(Type::String, of_declared(item)),
        Declared::Struct(definition) => of_struct(definition),
    }
}
