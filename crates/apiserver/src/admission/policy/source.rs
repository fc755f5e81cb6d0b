//! The policies that are bound, read from the watch caches and compiled once per change.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use cel::Type;
use k8s_openapi::Resource;
use k8s_openapi::api::admissionregistration::v1::{
    AuditAnnotation, MatchCondition, MatchResources, MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, Mutation,
    ParamKind, ParamRef, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, Validation, Variable,
};
use parking_lot::RwLock;
use registry::admissionregistration::environment::{Compiler, Names, mutation_type};
use registry::parts::Parts;
use registry::table::store_prefix;

use super::super::expressions::{self, Compiled, Conditions};
use super::super::matching::Criteria;
use super::super::metrics::{Expression, observe_expression};
use crate::cluster::Cluster;
use crate::watch_cache::{Cache, Unreadable};

/// A policy that is bound, ready to be asked.
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) criteria: Criteria,
    pub(super) fails_open: bool,
    pub(super) param_kind: Option<ParamKind>,
    pub(super) conditions: Conditions,
    pub(super) variables: Arc<Vec<expressions::Variable>>,
    pub(super) bindings: Vec<Binding>,
    pub(super) validations: Vec<Rule>,
    pub(super) annotations: Vec<(String, Compiled)>,
    pub(super) mutations: Vec<Change>,
    pub(super) if_needed: bool,
}

pub(super) struct Binding {
    pub(super) name: String,
    pub(super) criteria: Option<Criteria>,
    pub(super) param_ref: Option<ParamRef>,
    /// What follows from a violation.
    pub(super) actions: Vec<String>,
}

/// A validation.
pub(super) struct Rule {
    pub(super) expression: String,
    pub(super) program: Compiled,
    pub(super) message: String,
    pub(super) message_program: Option<Compiled>,
    pub(super) reason: Option<String>,
}

/// A mutation.
pub(super) struct Change {
    pub(super) program: Compiled,
    pub(super) is_json_patch: bool,
}

/// What both kinds of policies declare.
#[derive(Default)]
pub(super) struct Declared {
    name: String,
    match_constraints: Option<MatchResources>,
    match_conditions: Option<Vec<MatchCondition>>,
    failure_policy: Option<String>,
    param_kind: Option<ParamKind>,
    variables: Option<Vec<Variable>>,
    validations: Option<Vec<Validation>>,
    audit_annotations: Option<Vec<AuditAnnotation>>,
    mutations: Option<Vec<Mutation>>,
    reinvocation_policy: Option<String>,
}

/// And what both kinds of bindings do.
pub(super) struct Bound {
    name: String,
    policy: String,
    param_ref: Option<ParamRef>,
    match_resources: Option<MatchResources>,
    actions: Vec<String>,
}

/// A kind of policy.
pub(super) trait Kind {
    type Policy: Parts + Resource;
    type Binding: Parts + Resource;
    fn declared(policy: Self::Policy) -> Declared;
    fn bound(binding: Self::Binding) -> Bound;
}

pub(super) struct Validating;
pub(super) struct Mutating;

/// The fields that both kinds of policies have, and those that only this one has.
macro_rules! declared {
    ($policy:ident, $($own:ident),+) => {{
        let spec = $policy.spec.unwrap_or_default();
        Declared {
            name: $policy.metadata.name.unwrap_or_default(),
            match_constraints: spec.match_constraints,
            match_conditions: spec.match_conditions,
            failure_policy: spec.failure_policy,
            param_kind: spec.param_kind,
            variables: spec.variables,
            $($own: spec.$own,)+
            ..Declared::default()
        }
    }};
}

impl Kind for Validating {
    type Policy = ValidatingAdmissionPolicy;
    type Binding = ValidatingAdmissionPolicyBinding;

    fn declared(policy: ValidatingAdmissionPolicy) -> Declared {
        declared!(policy, validations, audit_annotations)
    }

    fn bound(binding: ValidatingAdmissionPolicyBinding) -> Bound {
        Bound {
            name: binding.metadata.name.unwrap_or_default(),
            policy: binding.spec.policy_name,
            param_ref: binding.spec.param_ref,
            match_resources: binding.spec.match_resources,
            actions: binding.spec.validation_actions,
        }
    }
}

impl Kind for Mutating {
    type Policy = MutatingAdmissionPolicy;
    type Binding = MutatingAdmissionPolicyBinding;

    fn declared(policy: MutatingAdmissionPolicy) -> Declared {
        declared!(policy, mutations, reinvocation_policy)
    }

    fn bound(binding: MutatingAdmissionPolicyBinding) -> Bound {
        let spec = binding.spec.unwrap_or_default();
        Bound {
            name: binding.metadata.name.unwrap_or_default(),
            policy: spec.policy_name.unwrap_or_default(),
            param_ref: spec.param_ref,
            match_resources: spec.match_resources,
            actions: Vec::new(),
        }
    }
}

/// All bound policies of one kind. Reading costs a look at two revisions; compiling happens when one has moved.
#[derive(Default)]
pub(super) struct Source {
    caches: OnceLock<[Arc<Cache>; 2]>,
    built: RwLock<Built>,
}

#[derive(Default)]
struct Built {
    /// The caches' revisions when the policies were compiled.
    revisions: Option<[u64; 2]>,
    policies: Arc<Vec<Policy>>,
}

impl Source {
    /// While a policy or binding cannot be read, nobody knows what it would say.
    pub(super) fn policies<K: Kind>(&self, cluster: &Cluster) -> Result<Arc<Vec<Policy>>, Unreadable> {
        let caches = match self.caches.get() {
            Some(caches) => caches,
            None => {
                let prefixes = [store_prefix::<K::Policy>(), store_prefix::<K::Binding>()];
                let [Some(policies), Some(bindings)] = prefixes.map(|prefix| cluster.caches.get(prefix)) else {
                    return Ok(Arc::default());
                };
                self.caches.get_or_init(|| [policies, bindings])
            }
        };
        let revisions = Some([caches[0].revision(), caches[1].revision()]);
        {
            let built = self.built.read();
            if built.revisions == revisions {
                return Ok(built.policies.clone());
            }
        }
        let mut built = self.built.write();
        let snapshots = [caches[0].snapshot(), caches[1].snapshot()];
        let revisions = Some([snapshots[0].revision, snapshots[1].revision]);
        if built.revisions == revisions {
            return Ok(built.policies.clone());
        }
        let mut bindings: BTreeMap<String, Vec<Binding>> = BTreeMap::new();
        for entry in snapshots[1].range(None, None) {
            let bound = K::bound(entry.object()?);
            bindings.entry(bound.policy.clone()).or_default().push(Binding::new(bound));
        }
        let mut policies = Vec::new();
        for entry in snapshots[0].range(None, None) {
            // A policy that nothing binds says nothing.
            let Some(bindings) = bindings.remove(entry.name()) else { continue };
            policies.push(Policy::compiled(K::declared(entry.object()?), bindings));
        }
        *built = Built { revisions, policies: Arc::new(policies) };
        Ok(built.policies.clone())
    }
}

impl Binding {
    fn new(bound: Bound) -> Self {
        Self {
            name: bound.name,
            criteria: bound.match_resources.map(|resources| Criteria::of_resources(&resources, true)),
            param_ref: bound.param_ref,
            actions: bound.actions,
        }
    }
}

impl Policy {
    fn compiled(declared: Declared, bindings: Vec<Binding>) -> Self {
        let began = Instant::now();
        let policy = Self::new(declared, bindings);
        observe_expression(Expression::Compiled, began.elapsed());
        policy
    }

    fn new(declared: Declared, bindings: Vec<Binding>) -> Self {
        let names = Names { params: declared.param_kind.is_some(), authorizer: true, patches: false };
        let mut compiler = Compiler::with_variables();
        let variables = declared.variables.into_iter().flatten().map(|variable| {
            let compiled = compiler.variable(&variable.name, &variable.expression, names);
            (variable.name, compiled)
        });
        let variables = Arc::new(variables.collect());
        let rules = declared.validations.into_iter().flatten().map(|validation| Rule {
            program: compiler.compile(&validation.expression, names, &[Type::Bool]),
            message: validation.message.unwrap_or_default(),
            message_program: validation
                .message_expression
                .filter(|text| !text.trim().is_empty())
                .map(|text| compiler.compile(&text, Names { authorizer: false, ..names }, &[Type::String])),
            reason: validation.reason,
            expression: validation.expression,
        });
        let annotations = declared.audit_annotations.into_iter().flatten().map(|annotation| {
            let wanted = [Type::String, Type::Null];
            (annotation.key, compiler.compile(annotation.value_expression.trim(), names, &wanted))
        });
        let changes = declared.mutations.into_iter().flatten().map(|mutation| change(&compiler, mutation, names));
        Self {
            criteria: Criteria::of_resources(&declared.match_constraints.unwrap_or_default(), false),
            fails_open: declared.failure_policy.as_deref() == Some("Ignore"),
            conditions: Conditions::new(declared.match_conditions.as_deref().unwrap_or_default(), names.params),
            validations: rules.collect(),
            annotations: annotations.collect(),
            mutations: changes.collect(),
            if_needed: declared.reinvocation_policy.as_deref() == Some("IfNeeded"),
            name: declared.name,
            param_kind: declared.param_kind,
            variables,
            bindings,
        }
    }
}

fn change(compiler: &Compiler, mutation: Mutation, names: Names) -> Change {
    let (apply, patch) = (mutation.apply_configuration, mutation.json_patch);
    let apply = apply.and_then(|apply| apply.expression);
    let patch = patch.and_then(|patch| patch.expression);
    let is_json_patch = apply.is_none();
    let expression = apply.or(patch).unwrap_or_default();
    let names = Names { patches: true, ..names };
    let program = compiler.compile(expression.trim(), names, &[mutation_type(is_json_patch)]);
    Change { program, is_json_patch }
}
