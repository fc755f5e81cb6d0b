//! Why a kustomization is not built, in kustomize's words where it has them.

use std::path::PathBuf;

use api::documents::DocumentError;

use crate::pattern::PatternError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum KustomizeError {
    #[error("{}: bases refer to each other", .0.display())]
    Circle(PathBuf),
    #[error(
        "must build at directory: not a valid directory: evalsymlink failure on '{}' : lstat {}: no such file or directory",
        dir.display(), absolute.display()
    )]
    NoDirectory { dir: PathBuf, absolute: PathBuf },
    #[error("unable to find one of 'kustomization.yaml', 'kustomization.yml' or 'Kustomization' in directory '{0}'")]
    NoFile(String),
    #[error("Found multiple kustomization files under: {0}\n")]
    SeveralFiles(String),
    #[error("{}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// As Go says it.
    #[error("{0}")]
    Io(String),
    #[error(transparent)]
    Yaml(#[from] DocumentError),
    #[error("invalid Kustomization: json: unknown field \"{0}\"")]
    UnknownField(String),
    #[error("kustomization.yaml is empty")]
    Empty,
    #[error("Failed to read kustomization file under {0}:\nkind should be Kustomization or Component")]
    Kind(String),
    /// A field that kustomize knows and we do not act on.
    #[error("{0}")]
    Refused(&'static str),
    #[error("buildMetadata {0} is not supported, only managedByLabel")]
    BuildMetadata(String),
    #[error(
        "{file}: configurations of {field} are not supported, only of nameReference and varReference; patches do the same"
    )]
    Configuration { file: String, field: String },
    #[error("accumulating resources: {0}")]
    Accumulating(Box<KustomizeError>),
    #[error("accumulating resources from '{0}': remote bases are not supported; fetch them first")]
    Remote(String),
    #[error("accumulation err='accumulating resources from '{entry}': {source}'")]
    Resource { entry: String, source: Box<KustomizeError> },
    #[error("accumulation err='merging resources from '{entry}': {source}'")]
    Merging { entry: String, source: Box<KustomizeError> },
    #[error("may not add resource with an already registered id: {0}")]
    Twice(String),
    #[error("{0}")]
    Manifest(String),
    #[error("security; file '{}' is not in or below '{}'", file.display(), root.display())]
    Outside { file: PathBuf, root: PathBuf },
    #[error(transparent)]
    Generator(#[from] GeneratorError),
    #[error(transparent)]
    Patch(#[from] PatchError),
    #[error(transparent)]
    Replacement(#[from] ReplacementError),
    #[error(transparent)]
    Var(#[from] VarError),
    #[error(
        "resource with name {0} does not match a config with the following GVK [Deployment.[noVer].[noGrp] ReplicationController.[noVer].[noGrp] ReplicaSet.[noVer].[noGrp] StatefulSet.[noVer].[noGrp]]"
    )]
    NoReplicas(String),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum GeneratorError {
    #[error("id {0} does not exist; cannot merge or replace")]
    Nothing(String),
    #[error("unknown behavior {0:?}")]
    Behavior(String),
    #[error("invalid literal source {0}, expected key=value")]
    Literal(String),
    #[error("configmap {name} illegally repeats the key `{key}`")]
    Repeated { name: String, key: String },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PatchError {
    #[error("must specify one and only one of patch and path in\na patch")]
    PatchOrPath,
    #[error("must specify a target for JSON patch")]
    NoTarget,
    #[error(
        "no resource matches strategic merge patch \"{0}\": no matches for Id {0}; failed to find unique target for patch {0}"
    )]
    NoMatch(String),
    #[error("{0}")]
    Apply(String),
    #[error("{key} {expression:?}: {why}")]
    Expression { key: &'static str, expression: String, why: PatternError },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplacementError {
    #[error("unable to find field {0:?} in replacement target")]
    NoField(String),
    #[error("nothing selected by {kind}:{name}")]
    NoSource { kind: String, name: String },
    #[error("fieldPath `{path}` is missing for replacement source {id}")]
    NoSourceField { path: String, id: String },
    #[error("options.index {at} is out of bounds for value {whole}")]
    Index { at: usize, whole: String },
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum VarError {
    #[error("var '{0}' already encountered")]
    Twice(String),
    #[error("found {count} resId matches for var {var} (unable to disambiguate)")]
    Ambiguous { count: usize, var: String },
    #[error("var {0} cannot be mapped to a field in the set of known resources")]
    NoResource(String),
    #[error("field specified in var {0} not found in corresponding resource")]
    NoField(String),
}
