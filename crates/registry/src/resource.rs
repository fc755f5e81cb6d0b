//! The row of the resource table: everything the server derives routes, discovery, store keys and rights from.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;

use api::schema::{Document, StructRef};
use api::sort::CompactSort as _;
use api::{GroupKind, GroupResource, Status};
use serde_json::Value;

pub use super::action::Action;
use super::object::Typed;
use super::scale_paths::ScalePaths;
use super::strategy::{AnyStrategy, Plain, Strategy};
use super::verb::Verb;

/// Text of a row: static for built-in resources, owned for custom ones.
pub type Text = Cow<'static, str>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

/// How requests for a resource are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// Objects live in the store; the generic verbs serve them.
    Stored,
    /// A question answered at once, never stored (`POST` only).
    Review(Review),
    /// The old `bindings` resource: the same as `pods/binding`.
    Binding,
    /// `componentstatuses`: computed, read-only.
    ComponentStatuses,
    /// What nodes and pods use: measured, read-only.
    Metrics(MetricsOf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsOf {
    Nodes,
    Pods,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    Token,
    SelfSubject,
    SubjectAccess,
    LocalSubjectAccess,
    SelfSubjectAccess,
    SelfSubjectRules,
}

pub const ALL_VERBS: &[Verb] = &[
    Verb::Create,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];
const CREATE: &[Verb] = &[Verb::Create];
const READ_WRITE: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];
const PROXY: &[Verb] = &[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update];
const CONNECT: &[Verb] = &[Verb::Create, Verb::Get];
const GET: &[Verb] = &[Verb::Get];
const UPDATE: &[Verb] = &[Verb::Update];

#[derive(Clone, Debug)]
pub struct Subresource {
    pub name: &'static str,
    pub action: Action,
    pub verbs: &'static [Verb],
    /// Group, version, kind of the body when it is not the parent's.
    pub kind: Option<(&'static str, &'static str, &'static str)>,
}

impl Action {
    /// Adds the body of a subresource to an OpenAPI document, where it is not the parent or a stream.
    pub fn describe(self, document: &mut Document) -> Option<String> {
        use k8s_openapi::api::{authentication, autoscaling, core, policy};
        match self {
            Action::Scale => Some(describe::<autoscaling::v1::Scale>(document)),
            Action::Binding => Some(describe::<core::v1::Binding>(document)),
            Action::Eviction => Some(describe::<policy::v1::Eviction>(document)),
            Action::Token => Some(describe::<authentication::v1::TokenRequest>(document)),
            _ => None,
        }
    }

    /// The subresource as upstream describes it in discovery.
    fn subresource(self) -> Subresource {
        let (name, verbs, kind) = match self {
            Action::Status => ("status", READ_WRITE, None),
            Action::Scale => ("scale", READ_WRITE, Some(("autoscaling", "v1", "Scale"))),
            Action::Binding => ("binding", CREATE, Some(("", "v1", "Binding"))),
            Action::Eviction => ("eviction", CREATE, Some(("policy", "v1", "Eviction"))),
            Action::Token => ("token", CREATE, Some(("authentication.k8s.io", "v1", "TokenRequest"))),
            Action::Approval => ("approval", READ_WRITE, None),
            Action::Finalize => ("finalize", UPDATE, None),
            Action::EphemeralContainers => ("ephemeralcontainers", READ_WRITE, None),
            Action::Resize => ("resize", READ_WRITE, None),
            Action::Log => ("log", GET, None),
            Action::Exec => ("exec", CONNECT, Some(("", "v1", "PodExecOptions"))),
            Action::Attach => ("attach", CONNECT, Some(("", "v1", "PodAttachOptions"))),
            Action::PortForward => ("portforward", CONNECT, Some(("", "v1", "PodPortForwardOptions"))),
            Action::Proxy => ("proxy", PROXY, None),
        };
        Subresource { name, action: self, verbs, kind }
    }
}

/// Turns the stored form of an object into another served version and back. All of it works on JSON and also rewrites
/// `apiVersion`.
#[derive(Clone)]
pub enum Conversion {
    /// Between versions of a built-in kind. In memory its objects have the stored form.
    Fixed { to_storage: fn(&mut Value), from_storage: fn(&mut Value) },
    /// To a version of a custom kind, by its schema of today. In memory its objects have the form of their version.
    Custom(Arc<dyn Fn(&mut Value) + Send + Sync>),
}

impl Conversion {
    pub fn to_storage(&self, value: &mut Value) {
        match self {
            Self::Fixed { to_storage, .. } => to_storage(value),
            Self::Custom(_) => {}
        }
    }

    pub fn from_storage(&self, value: &mut Value) {
        match self {
            Self::Fixed { from_storage, .. } => from_storage(value),
            Self::Custom(read) => read(value),
        }
    }
}

/// Brings objects of a custom kind into another of its versions, where its definition names somebody who can.
pub trait Converter: Send + Sync {
    /// All objects at once, in the order given.
    fn convert<'a>(&'a self, kind: &'a str, objects: Vec<Value>, wanted: &'a str) -> Converted<'a>;
}

/// The objects in the version that was wanted.
pub type Converted<'a> = Pin<Box<dyn Future<Output = Result<Vec<Value>, Status>> + Send + 'a>>;

/// Adds the type of a row to an OpenAPI document and returns its name there.
pub type Describe = Arc<dyn Fn(&mut Document) -> String + Send + Sync>;

fn describe<K: k8s_openapi::Resource>(document: &mut Document) -> String {
    document.add_kind(K::API_VERSION, K::KIND)
}

pub struct Resource {
    pub group: Text,
    pub version: Text,
    pub kind: Text,
    pub plural: Text,
    pub singular: Text,
    pub short_names: Vec<Text>,
    pub categories: Vec<Text>,
    pub scope: Scope,
    pub verbs: &'static [Verb],
    pub subresources: Vec<Subresource>,
    pub serving: Serving,
    /// Where objects live under `/registry/`: usually the plural, as upstream lays it out.
    pub store_prefix: Text,
    /// `apiVersion` of the stored form.
    pub storage_version: Text,
    /// Set when this row is not the stored version.
    pub conversion: Option<Conversion>,
    /// What objects of this version are like, where they have other fields than the stored ones.
    pub own_schema: Option<fn() -> StructRef>,
    pub strategy: Arc<dyn AnyStrategy>,
    pub describe: Describe,
    /// Whether `metadata.initializers` is honoured; set for all rows when initializers are served.
    pub initializers: bool,
    /// A delete is answered with the object as it was last, not with a status.
    pub returns_deleted: bool,
    /// Objects go away by themselves after a while (`--event-ttl`).
    pub expires: bool,
    /// The kind of a list, where it is not that of its elements and `List`.
    pub list_kind: Option<Text>,
    /// Described by a CustomResourceDefinition.
    pub is_custom: bool,
    /// Where the parts of a Scale are, where that is not as in the kinds of `apps`.
    pub scale: Option<ScalePaths>,
    /// Asked for objects in other versions than the one they are stored in; set by the server, which can ask.
    pub converter: Option<Arc<dyn Converter>>,
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.plural, self.version, self.group)
    }
}

impl Resource {
    /// A namespaced resource with all verbs and no rules of its own yet.
    pub fn namespaced<K: Typed>(singular: &'static str) -> Self {
        Self::new::<K>(Scope::Namespaced, K::URL_PATH_SEGMENT, singular, Plain::<K>::default(), Arc::new(describe::<K>))
    }

    /// A cluster-wide resource with all verbs and no rules of its own yet.
    pub fn cluster<K: Typed>(singular: &'static str) -> Self {
        Self::new::<K>(Scope::Cluster, K::URL_PATH_SEGMENT, singular, Plain::<K>::default(), Arc::new(describe::<K>))
    }

    /// A resource that is answered, not stored.
    pub fn answered<K: k8s_openapi::Resource + 'static>(
        scope: Scope,
        plural: &'static str,
        singular: &'static str,
        serving: Serving,
    ) -> Self {
        // The strategy is never asked: nothing of this resource is decoded through it.
        let unused = Plain::<k8s_openapi::api::core::v1::ConfigMap>::default();
        Self { verbs: CREATE, serving, ..Self::new::<K>(scope, plural, singular, unused, Arc::new(describe::<K>)) }
    }

    fn new<K: k8s_openapi::Resource>(
        scope: Scope,
        plural: &'static str,
        singular: &'static str,
        strategy: impl Strategy,
        describe: Describe,
    ) -> Self {
        let gvk = [K::GROUP.into(), K::VERSION.into(), K::KIND.into()];
        Self::row(gvk, [plural.into(), singular.into(), plural.into()], scope, Arc::new(strategy), describe)
    }

    /// A row for one version of a custom kind: group, version and kind; plural, singular and where objects are stored.
    pub(crate) fn custom(
        gvk: [String; 3],
        names: [String; 3],
        scope: Scope,
        strategy: Arc<dyn AnyStrategy>,
        describe: Describe,
    ) -> Self {
        let row = Self::row(gvk.map(Text::from), names.map(Text::from), scope, strategy, describe);
        Self { is_custom: true, ..row }
    }

    fn row(
        [group, version, kind]: [Text; 3],
        [plural, singular, store_prefix]: [Text; 3],
        scope: Scope,
        strategy: Arc<dyn AnyStrategy>,
        describe: Describe,
    ) -> Self {
        let storage_version = if group.is_empty() { version.clone() } else { Text::from(format!("{group}/{version}")) };
        Self {
            group,
            version,
            kind,
            plural,
            singular,
            short_names: Vec::new(),
            categories: Vec::new(),
            scope,
            verbs: ALL_VERBS,
            subresources: Vec::new(),
            serving: Serving::Stored,
            store_prefix,
            storage_version,
            conversion: None,
            own_schema: None,
            strategy,
            describe,
            initializers: false,
            returns_deleted: false,
            expires: false,
            list_kind: None,
            is_custom: false,
            scale: None,
            converter: None,
        }
    }

    pub fn short(mut self, names: &[&'static str]) -> Self {
        self.short_names = names.iter().map(|name| Text::from(*name)).collect();
        self
    }

    pub fn category(mut self, category: &'static str) -> Self {
        self.categories.push(category.into());
        self
    }

    pub fn verbs(mut self, verbs: &'static [Verb]) -> Self {
        self.verbs = verbs;
        self
    }

    pub fn status(self) -> Self {
        self.with(&[Action::Status])
    }

    /// Adds subresources; kept in alphabetical order, as discovery lists them.
    pub fn with(mut self, actions: &[Action]) -> Self {
        self.subresources.extend(actions.iter().map(|action| action.subresource()));
        self.subresources.compact_sort_by_key(|subresource| subresource.name);
        self
    }

    /// Names the kind of the `proxy` body, which upstream calls `<parent>ProxyOptions`.
    pub fn proxy_options(mut self, kind: &'static str) -> Self {
        for subresource in &mut self.subresources {
            if subresource.action == Action::Proxy {
                subresource.kind = Some(("", "v1", kind));
            }
        }
        self
    }

    pub fn stored_under(mut self, prefix: &'static str) -> Self {
        self.store_prefix = prefix.into();
        self
    }

    pub fn returns_deleted(mut self) -> Self {
        self.returns_deleted = true;
        self
    }

    pub fn expires(mut self) -> Self {
        self.expires = true;
        self
    }

    /// Replaces the do-nothing strategy of a new row.
    pub fn strategy(mut self, strategy: impl Strategy) -> Self {
        self.strategy = Arc::new(strategy);
        self
    }

    /// The same resource in another version, converted to and from this one, the stored version.
    pub fn also_as<K: k8s_openapi::Resource + 'static>(&self, conversion: Conversion) -> Self {
        Self {
            group: K::GROUP.into(),
            version: K::VERSION.into(),
            kind: self.kind.clone(),
            plural: self.plural.clone(),
            singular: self.singular.clone(),
            short_names: self.short_names.clone(),
            categories: self.categories.clone(),
            scope: self.scope,
            verbs: self.verbs,
            subresources: self.subresources.clone(),
            serving: self.serving,
            store_prefix: self.store_prefix.clone(),
            storage_version: self.storage_version.clone(),
            conversion: Some(conversion),
            own_schema: None,
            strategy: self.strategy.clone(),
            describe: Arc::new(describe::<K>),
            initializers: self.initializers,
            returns_deleted: self.returns_deleted,
            expires: self.expires,
            list_kind: self.list_kind.clone(),
            is_custom: self.is_custom,
            scale: self.scale.clone(),
            converter: self.converter.clone(),
        }
    }

    /// As [`Self::also_as`], for a version whose objects have other fields.
    pub fn also_shaped_as<K: k8s_openapi::Resource + 'static>(&self, conversion: Conversion) -> Self {
        Self { own_schema: Some(api::schema::of::<K>), ..self.also_as::<K>(conversion) }
    }

    /// What objects of this version are like.
    pub fn schema(&self) -> StructRef {
        self.own_schema.map_or_else(|| self.strategy.schema(), |schema| schema())
    }

    /// As [`Self::schema`], with the types of all scalars, for expressions about the kind.
    pub fn typed_schema(&self) -> StructRef {
        self.own_schema.map_or_else(|| self.strategy.typed_schema(), |schema| schema())
    }

    /// Brings an object of this version into its stored form.
    pub fn to_storage(&self, value: &mut Value) {
        if let Some(conversion) = &self.conversion {
            conversion.to_storage(value);
        }
    }

    /// Brings a stored object into this version, with the zero values that this one writes.
    pub fn from_storage(&self, value: &mut Value) {
        let Some(conversion) = &self.conversion else { return };
        conversion.from_storage(value);
        if let (Some(schema), Some(fields)) = (self.own_schema, value.as_object_mut()) {
            api::schema::tidy_fields(fields, &schema());
        }
    }

    /// The kind of a list of these objects.
    pub fn list_kind(&self) -> String {
        self.list_kind.as_ref().map_or_else(|| format!("{}List", self.kind), ToString::to_string)
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_string() } else { [&*self.group, "/", &*self.version].concat() }
    }

    /// `deployments.apps`, as error messages name a resource.
    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.group.clone(), resource: self.plural.clone() }
    }

    pub fn group_kind(&self) -> GroupKind {
        GroupKind { group: self.group.clone(), kind: self.kind.clone() }
    }

    pub fn is_namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    /// The namespace that decides about an object: its own, and a namespace is in itself.
    pub fn namespace_of<'a>(&self, namespace: &'a str, name: &'a str) -> &'a str {
        if self.group.is_empty() && self.plural == "namespaces" { name } else { namespace }
    }

    pub fn has_verb(&self, verb: &Verb) -> bool {
        self.verbs.contains(verb)
    }

    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }

    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    /// Served without `--runtime-config`: stable versions are, alpha and beta are not (v1.24 and later).
    pub fn is_default(&self) -> bool {
        !self.version.contains("alpha") && !self.version.contains("beta")
    }
}
