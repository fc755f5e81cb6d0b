//! The names of expressions about a write, with their types.

use std::sync::{Arc, LazyLock};

use api::field::{FieldErrors, Path};
use cel::{CompileError, Env, Program, Struct, Type};

/// A type with these fields.
#[derive(Debug)]
struct Fields {
    name: &'static str,
    fields: Vec<(String, Type)>,
}

impl Struct for Fields {
    fn name(&self) -> &str {
        self.name
    }

    fn field(&self, name: &str) -> Option<Type> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, of)| of.clone())
    }
}

pub fn structure(name: &'static str, fields: &[(&str, Type)]) -> Type {
    let fields = fields.iter().map(|(name, of)| ((*name).to_owned(), of.clone())).collect();
    Type::Struct(Arc::new(Fields { name, fields }))
}

static REQUEST: LazyLock<Type> = LazyLock::new(|| {
    let text = Type::String;
    let kind = structure(
        "kubernetes.GroupVersionKind",
        &[("group", text.clone()), ("version", text.clone()), ("kind", text.clone())],
    );
    let resource = structure(
        "kubernetes.GroupVersionResource",
        &[("group", text.clone()), ("version", text.clone()), ("resource", text.clone())],
    );
    let user = structure(
        "kubernetes.UserInfo",
        &[
            ("username", text.clone()),
            ("uid", text.clone()),
            ("groups", Type::list(text.clone())),
            ("extra", Type::map(text.clone(), Type::list(text.clone()))),
        ],
    );
    structure(
        "kubernetes.AdmissionRequest",
        &[
            ("kind", kind.clone()),
            ("resource", resource.clone()),
            ("subResource", text.clone()),
            ("requestKind", kind),
            ("requestResource", resource),
            ("requestSubResource", text.clone()),
            ("name", text.clone()),
            ("namespace", text.clone()),
            ("operation", text),
            ("userInfo", user),
            ("dryRun", Type::Bool),
            ("options", Type::Dyn),
        ],
    )
});

/// Fields of a namespace's metadata that expressions may see.
pub const NAMESPACE_METADATA: [&str; 12] = [
    "name",
    "generateName",
    "namespace",
    "labels",
    "annotations",
    "UID",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "resourceVersion",
    "finalizers",
];

static NAMESPACE: LazyLock<Type> = LazyLock::new(|| {
    let texts = Type::list(Type::String);
    let map = Type::map(Type::String, Type::String);
    let metadata = NAMESPACE_METADATA.map(|name| {
        let of = match name {
            "labels" | "annotations" => map.clone(),
            "creationTimestamp" | "deletionTimestamp" => Type::Timestamp,
            "deletionGracePeriodSeconds" | "generation" => Type::Int,
            "finalizers" => texts.clone(),
            _ => Type::String,
        };
        (name, of)
    });
    let condition = structure(
        "kubernetes.NamespaceCondition",
        &[
            ("status", Type::String),
            ("type", Type::String),
            ("lastTransitionTime", Type::Timestamp),
            ("message", Type::String),
            ("reason", Type::String),
        ],
    );
    structure(
        "kubernetes.Namespace",
        &[
            ("metadata", structure("kubernetes.NamespaceMetadata", &metadata)),
            ("spec", structure("kubernetes.NamespaceSpec", &[("finalizers", texts)])),
            (
                "status",
                structure(
                    "kubernetes.NamespaceStatus",
                    &[("conditions", Type::list(condition)), ("phase", Type::String)],
                ),
            ),
        ],
    )
});

/// Which names there are beyond those of every expression.
#[derive(Clone, Copy, Default)]
pub struct Names {
    pub params: bool,
    pub authorizer: bool,
    /// Objects and patches can be made.
    pub patches: bool,
}

/// Compiles the expressions of one policy; its variables are known to those after them.
#[derive(Default)]
pub struct Compiler {
    variables: Option<Vec<(String, Type)>>,
    /// What `object` and `oldObject`, and `params`, are, where that is known.
    pub object: Option<Type>,
    pub params: Option<Type>,
}

impl Compiler {
    /// For a policy that may have variables.
    pub fn with_variables() -> Self {
        Self { variables: Some(Vec::new()), ..Self::default() }
    }

    fn env(&self, names: Names) -> Env {
        let object = || self.object.clone().unwrap_or(Type::Dyn);
        let mut env = Env::default()
            .with("object", object())
            .with("oldObject", object())
            .with("namespaceObject", NAMESPACE.clone())
            .with("request", REQUEST.clone());
        if names.params {
            env.declare("params", self.params.clone().unwrap_or(Type::Dyn));
        }
        if names.authorizer {
            env.declare("authorizer", Type::Opaque("kubernetes.authorization.Authorizer"));
            env.declare("authorizer.requestResource", Type::Opaque("kubernetes.authorization.ResourceCheck"));
        }
        if let Some(variables) = &self.variables {
            let fields = Fields { name: "kubernetes.variables", fields: variables.clone() };
            env.declare("variables", Type::Struct(Arc::new(fields)));
        }
        if names.patches { env.with_structures(patch_structure) } else { env }
    }

    /// Compiles what must be of one of these types.
    pub fn compile(&self, source: &str, names: Names, wanted: &[Type]) -> Result<Program, CompileError> {
        self.env(names).compile_as(source, wanted)
    }

    /// Compiles a variable, which what follows may name.
    pub fn variable(&mut self, name: &str, source: &str, names: Names) -> Result<Program, CompileError> {
        let compiled = self.env(names).compile_as(source, &[]);
        let of = compiled.as_ref().map_or(Type::Dyn, |program| program.result().clone());
        if let Some(variables) = &mut self.variables {
            variables.push((name.to_owned(), of));
        }
        compiled
    }

    /// Notes what is wrong with an expression of an object that is written.
    pub fn check(&self, errors: &mut FieldErrors, path: Path<'_>, source: &str, names: Names, wanted: &[Type]) {
        if let Err(problem) = self.compile(source, names, wanted) {
            errors.invalid(path, source, problem.to_string());
        }
    }
}

/// What a `JSONPatch{}` may say.
const JSON_PATCH: [&str; 4] = ["op", "path", "from", "value"];

/// `Object{}`, `Object.spec{}` and so on, whose fields may be anything, and `JSONPatch{}`.
#[derive(Debug)]
struct Patch(String);

impl Struct for Patch {
    fn name(&self) -> &str {
        &self.0
    }

    fn field(&self, name: &str) -> Option<Type> {
        match self.0.as_str() {
            "JSONPatch" => JSON_PATCH.contains(&name).then_some(match name {
                "value" => Type::Dyn,
                _ => Type::String,
            }),
            _ => Some(Type::Dyn),
        }
    }
}

fn patch_structure(name: &str) -> Option<Type> {
    let is_known = name == "JSONPatch" || name == "Object" || name.starts_with("Object.");
    is_known.then(|| Type::Struct(Arc::new(Patch(name.to_owned()))))
}

/// What the expression of a mutation must come to.
pub fn mutation_type(is_json_patch: bool) -> Type {
    let of = |name| patch_structure(name).unwrap_or(Type::Dyn);
    match is_json_patch {
        true => Type::list(of("JSONPatch")),
        false => of("Object"),
    }
}
