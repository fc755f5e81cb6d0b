//! The paths of an OpenAPI document, from the resource table: what clients look for in them is the kind and the action
//! of an operation, its parameters, and the types of bodies and answers.

use api::schema::Document;
use registry::resource::Subresource;
use registry::{Action, Resource, Verb};
use serde_json::{Map, Value, json};

use crate::accept::patch_types;

pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const WATCH_EVENT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";

/// The two forms of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    V2,
    V3,
}

impl Dialect {
    /// Where types are, as a JSON pointer.
    pub(super) fn references(self) -> &'static str {
        match self {
            Dialect::V2 => "#/definitions/",
            Dialect::V3 => "#/components/schemas/",
        }
    }

    pub(super) fn reference(self, name: &str) -> Value {
        json!({"$ref": format!("{}{name}", self.references())})
    }

    fn parameter(self, name: &str, place: &str, kind: &str) -> Value {
        let mut parameter = json!({"name": name, "in": place, "uniqueItems": true});
        if place == "path" {
            parameter["required"] = true.into();
        }
        if let Some((_, description)) = DESCRIPTIONS.iter().find(|(of, _)| *of == name) {
            parameter["description"] = (*description).into();
        }
        match self {
            Dialect::V2 => parameter["type"] = kind.into(),
            Dialect::V3 => parameter["schema"] = json!({"type": kind, "uniqueItems": true}),
        }
        parameter
    }
}

pub(super) const MEDIA: &[&str] = &["application/json", "application/yaml"];
const LIST_MEDIA: &[&str] = &["application/json", "application/yaml", "application/json;stream=watch"];
/// What parameters mean whose names do not say it all.
const DESCRIPTIONS: &[(&str, &str)] = &[
    ("continue", "The token of the previous page of a list, to read the next."),
    ("dryRun", "All: go through every step, and store nothing."),
    ("fieldManager", "The name under which changed fields are recorded."),
    ("fieldSelector", "Restricts the list of returned objects by their fields."),
    ("labelSelector", "Restricts the list of returned objects by their labels."),
    ("limit", "The greatest number of objects to return at once; the answer says how to go on."),
    ("watch", "Watch for changes to the described resources: a stream of events from resourceVersion on."),
];
/// Query parameters and their types.
const WRITE: &[(&str, &str)] = &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const DELETE: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];
const LIST: &[(&str, &str)] = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const EXEC: &[(&str, &str)] = &[
    ("command", "string"),
    ("container", "string"),
    ("stderr", "boolean"),
    ("stdin", "boolean"),
    ("stdout", "boolean"),
    ("tty", "boolean"),
];
const ATTACH: &[(&str, &str)] =
    &[("container", "string"), ("stderr", "boolean"), ("stdin", "boolean"), ("stdout", "boolean"), ("tty", "boolean")];
const LOG: &[(&str, &str)] = &[
    ("container", "string"),
    ("follow", "boolean"),
    ("insecureSkipTLSVerifyBackend", "boolean"),
    ("limitBytes", "integer"),
    ("previous", "boolean"),
    ("sinceSeconds", "integer"),
    ("stream", "string"),
    ("tailLines", "integer"),
    ("timestamps", "boolean"),
];

/// Methods that are passed on to whatever a proxy leads to.
const PROXIED: &[&str] = &["delete", "get", "head", "options", "patch", "post", "put"];

/// One operation, before it is written down in a dialect.
struct Operation<'a> {
    action: &'a str,
    /// Group, version and kind of what is sent.
    of: (&'a str, &'a str, &'a str),
    id: String,
    description: String,
    query: Vec<(&'a str, &'a str)>,
    /// The type of the body, and whether it must be there.
    body: Option<(&'a str, bool)>,
    answer: Option<&'a str>,
    codes: &'a [&'a str],
}

/// Adds the paths of a row and its subresources.
pub(super) fn add(
    row: &Resource,
    kind: &str,
    dialect: Dialect,
    document: &mut Document,
    paths: &mut Map<String, Value>,
) {
    let mut writer = Writer { row, kind, dialect, paths };
    writer.collection();
    writer.object();
    writer.watches();
    for subresource in &row.subresources {
        let body = subresource.action.describe(document);
        writer.subresource(subresource, body.as_deref());
    }
}

struct Writer<'a> {
    row: &'a Resource,
    /// The name of its type.
    kind: &'a str,
    dialect: Dialect,
    paths: &'a mut Map<String, Value>,
}

impl Writer<'_> {
    fn base(&self) -> String {
        match &*self.row.group {
            "" => format!("/api/{}", self.row.version),
            group => format!("/apis/{group}/{}", self.row.version),
        }
    }

    fn gvk(&self) -> (&str, &str, &str) {
        (&self.row.group, &self.row.version, &self.row.kind)
    }

    fn place(&self) -> &'static str {
        if self.row.is_namespaced() { "/namespaces/{namespace}" } else { "" }
    }

    /// `CoreV1`, `RbacAuthorizationV1`: how operations name a group version.
    fn group_version(&self) -> String {
        let group = if self.row.group.is_empty() { "core" } else { self.row.group.trim_end_matches(".k8s.io") };
        group.split(['.', '-']).map(capitalized).collect::<String>() + &capitalized(&self.row.version)
    }

    fn id(&self, verb: &str, middle: &str, suffix: &str) -> String {
        let namespaced = if self.row.is_namespaced() { "Namespaced" } else { "" };
        format!("{verb}{}{middle}{namespaced}{}{suffix}", self.group_version(), self.row.kind)
    }

    fn collection(&mut self) {
        let (row, kind) = (self.row, self.kind);
        let list = list_name(kind);
        let mut operations = Map::new();
        if row.has_verb(&Verb::List) {
            let listing = |id: String| Operation {
                action: "list",
                of: self.gvk(),
                id,
                description: format!("list or watch objects of kind {}", row.kind),
                query: LIST.to_vec(),
                body: None,
                answer: Some(&list),
                codes: &["200"],
            };
            operations.insert("get".to_owned(), self.write(&listing(self.id("list", "", ""))));
            if row.is_namespaced() {
                let id = format!("list{}{}ForAllNamespaces", self.group_version(), row.kind);
                let everywhere = self.write(&listing(id));
                let path = format!("{}/{}", self.base(), row.plural);
                self.insert(path, [("get".to_owned(), everywhere)].into_iter().collect(), &["pretty"]);
            }
        }
        if row.has_verb(&Verb::Create) {
            let operation = Operation {
                action: "post",
                of: self.gvk(),
                id: self.id("create", "", ""),
                description: format!("create a {}", row.kind),
                query: WRITE.to_vec(),
                body: Some((kind, true)),
                answer: Some(kind),
                codes: &["200", "201", "202"],
            };
            operations.insert("post".to_owned(), self.write(&operation));
        }
        if row.has_verb(&Verb::DeleteCollection) {
            let only_lists = |name: &str| matches!(name, "allowWatchBookmarks" | "watch");
            let query = LIST.iter().filter(|(name, _)| !only_lists(name)).chain(DELETE);
            let operation = Operation {
                action: "deletecollection",
                of: self.gvk(),
                id: self.id("delete", "Collection", ""),
                description: format!("delete collection of {}", row.kind),
                query: query.copied().collect(),
                body: Some((DELETE_OPTIONS, false)),
                answer: Some(STATUS),
                codes: &["200"],
            };
            operations.insert("delete".to_owned(), self.write(&operation));
        }
        let path = format!("{}{}/{}", self.base(), self.place(), row.plural);
        self.insert(path, operations, &["namespace", "pretty"]);
    }

    fn object(&mut self) {
        let (row, kind) = (self.row, self.kind);
        let what = format!("the specified {}", row.kind);
        let mut operations = self.read_write(row.verbs, "", kind, self.gvk(), &what);
        if row.has_verb(&Verb::Delete) {
            let operation = Operation {
                action: "delete",
                of: self.gvk(),
                id: self.id("delete", "", ""),
                description: format!("delete a {}", row.kind),
                query: DELETE.to_vec(),
                body: Some((DELETE_OPTIONS, false)),
                answer: Some(if row.returns_deleted { kind } else { STATUS }),
                codes: &["200", "202"],
            };
            operations.insert("delete".to_owned(), self.write(&operation));
        }
        let path = format!("{}{}/{}/{{name}}", self.base(), self.place(), row.plural);
        self.insert(path, operations, &["name", "namespace", "pretty"]);
    }

    /// The old paths of watches, which are still served.
    fn watches(&mut self) {
        let row = self.row;
        if !row.has_verb(&Verb::Watch) {
            return;
        }
        let (base, place, plural) = (format!("{}/watch", self.base()), self.place(), &row.plural);
        let (version, kind) = (self.group_version(), &row.kind);
        let mut paths = vec![
            (format!("{base}{place}/{plural}"), self.id("watch", "", "List"), "watchlist"),
            (format!("{base}{place}/{plural}/{{name}}"), self.id("watch", "", ""), "watch"),
        ];
        if row.is_namespaced() {
            let id = format!("watch{version}{kind}ListForAllNamespaces");
            paths.push((format!("{base}/{plural}"), id, "watchlist"));
        }
        for (path, id, action) in paths {
            let operation = Operation {
                action,
                of: self.gvk(),
                id,
                description: format!("watch changes of {kind}; use the watch parameter of a list instead"),
                query: LIST.to_vec(),
                body: None,
                answer: Some(WATCH_EVENT),
                codes: &["200"],
            };
            let operations = [("get".to_owned(), self.write(&operation))].into_iter().collect();
            self.insert(path, operations, &["name", "namespace", "pretty"]);
        }
    }

    fn subresource(&mut self, subresource: &Subresource, body: Option<&str>) {
        let row = self.row;
        let path = format!("{}{}/{}/{{name}}/{}", self.base(), self.place(), row.plural, subresource.name);
        let suffix = capitalized(subresource.name);
        let kind = body.unwrap_or(self.kind).to_owned();
        let streams = matches!(
            subresource.action,
            Action::Exec | Action::Attach | Action::PortForward | Action::Proxy | Action::Log
        );
        let of = subresource.kind.unwrap_or((&row.group, &row.version, &row.kind));
        let mut operations = Map::new();
        if streams {
            let query = match subresource.action {
                Action::Exec => EXEC.to_vec(),
                Action::Attach => ATTACH.to_vec(),
                Action::Log => LOG.to_vec(),
                Action::PortForward => vec![("ports", "integer")],
                _ => vec![("path", "string")],
            };
            if subresource.action == Action::Log {
                let operation = Operation {
                    action: "get",
                    of,
                    id: self.id("read", "", &suffix),
                    description: format!("read log of the specified {}", row.kind),
                    query,
                    body: None,
                    answer: None,
                    codes: &["200"],
                };
                operations.insert("get".to_owned(), self.write(&operation));
                return self.insert(path, operations, &["name", "namespace", "pretty"]);
            }
            let is_proxy = subresource.action == Action::Proxy;
            let methods = if is_proxy { PROXIED } else { &["get", "post"] };
            for with_path in [false, true].into_iter().take(1 + usize::from(is_proxy)) {
                let suffix = if with_path { format!("{suffix}WithPath") } else { suffix.clone() };
                let mut operations = Map::new();
                for method in methods {
                    let operation = Operation {
                        action: "connect",
                        of,
                        id: self.id("connect", &capitalized(method), &suffix),
                        description: format!(
                            "connect {} requests to {} of {}",
                            method.to_uppercase(),
                            subresource.name,
                            row.kind
                        ),
                        query: query.clone(),
                        body: None,
                        answer: None,
                        codes: &["200"],
                    };
                    operations.insert((*method).to_owned(), self.write(&operation));
                }
                let path = if with_path { format!("{path}/{{path}}") } else { path.clone() };
                self.insert(path, operations, &["name", "namespace", "path"]);
            }
            return;
        } else {
            let what = format!("{} of the specified {}", subresource.name, row.kind);
            operations = self.read_write(subresource.verbs, &suffix, &kind, of, &what);
            if subresource.verbs.contains(&Verb::Create) {
                let operation = Operation {
                    action: "post",
                    of,
                    id: self.id("create", "", &suffix),
                    description: format!("create {} of a {}", subresource.name, row.kind),
                    query: WRITE.to_vec(),
                    body: Some((&kind, true)),
                    answer: Some(&kind),
                    codes: &["200", "201", "202"],
                };
                operations.insert("post".to_owned(), self.write(&operation));
            }
        }
        self.insert(path, operations, &["name", "namespace", "pretty"]);
    }

    /// `get`, `put` and `patch` of an object or a part of it.
    fn read_write(
        &self,
        verbs: &[Verb],
        suffix: &str,
        kind: &str,
        of: (&str, &str, &str),
        what: &str,
    ) -> Map<String, Value> {
        let mut operations = Map::new();
        for (verb, method, word, description) in [
            (Verb::Get, "get", "read", "read"),
            (Verb::Update, "put", "replace", "replace"),
            (Verb::Patch, "patch", "patch", "partially update"),
        ] {
            if !verbs.contains(&verb) {
                continue;
            }
            let force = [("force", "boolean")];
            let query = match verb {
                Verb::Get => Vec::new(),
                Verb::Update => WRITE.to_vec(),
                _ => WRITE.iter().chain(&force).copied().collect(),
            };
            let operation = Operation {
                action: method,
                of,
                id: self.id(word, "", suffix),
                description: format!("{description} {what}"),
                query,
                body: match verb {
                    Verb::Get => None,
                    Verb::Update => Some((kind, true)),
                    _ => Some((PATCH, true)),
                },
                answer: Some(kind),
                codes: if verb == Verb::Get { &["200"] } else { &["200", "201"] },
            };
            operations.insert(method.to_owned(), self.write(&operation));
        }
        operations
    }

    fn write(&self, operation: &Operation<'_>) -> Value {
        let (row, dialect) = (self.row, self.dialect);
        let consumes: &[&str] = if operation.action == "patch" { patch_types(row) } else { &["*/*"] };
        let produces = if matches!(operation.action, "list" | "watch" | "watchlist") { LIST_MEDIA } else { MEDIA };
        let (group, version, kind) = operation.of;
        let mut parameters: Vec<Value> =
            operation.query.iter().map(|(name, kind)| dialect.parameter(name, "query", kind)).collect();
        let content = |media: &[&str], name: &str| -> Value {
            media
                .iter()
                .map(|media| ((*media).to_owned(), json!({"schema": dialect.reference(name)})))
                .collect::<Map<_, _>>()
                .into()
        };
        let mut responses = Map::new();
        for code in operation.codes {
            let mut response = json!({"description": reason(code)});
            match (operation.answer, dialect) {
                (Some(name), Dialect::V2) => response["schema"] = dialect.reference(name),
                (Some(name), Dialect::V3) => response["content"] = content(produces, name),
                (None, Dialect::V2) => response["schema"] = json!({"type": "string"}),
                (None, Dialect::V3) => response["content"] = json!({"*/*": {"schema": {"type": "string"}}}),
            }
            responses.insert((*code).to_owned(), response);
        }
        responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
        let tag = format!("{}_{}", group_tag(&row.group), row.version);
        let mut written = json!({
            "description": operation.description,
            "operationId": operation.id,
            "tags": [tag],
            "responses": responses,
            "x-kubernetes-action": operation.action,
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
        });
        match (operation.body, dialect) {
            (Some((name, required)), Dialect::V2) => {
                let body =
                    json!({"name": "body", "in": "body", "required": required, "schema": dialect.reference(name)});
                parameters.insert(0, body);
            }
            (Some((name, required)), Dialect::V3) => {
                let body = json!({"required": required, "content": content(consumes, name)});
                written["requestBody"] = body;
            }
            (None, _) => {}
        }
        if dialect == Dialect::V2 {
            written["consumes"] = json!(consumes);
            written["produces"] = json!(produces);
            written["schemes"] = json!(["https"]);
        }
        if !parameters.is_empty() {
            written["parameters"] = Value::Array(parameters);
        }
        written
    }

    /// Adds a path with the parameters that all of its operations share.
    fn insert(&mut self, path: String, mut operations: Map<String, Value>, shared: &[&str]) {
        if operations.is_empty() {
            return;
        }
        let parameters = shared.iter().filter_map(|name| match *name {
            "pretty" => Some(self.dialect.parameter("pretty", "query", "string")),
            name if path.contains(&format!("{{{name}}}")) => Some(self.dialect.parameter(name, "path", "string")),
            _ => None,
        });
        operations.insert("parameters".to_owned(), parameters.collect());
        self.paths.insert(path, Value::Object(operations));
    }
}

/// `PodList` of `Pod`.
pub(super) fn list_name(kind: &str) -> String {
    format!("{kind}List")
}

/// `core`, `apps`, `rbacAuthorization`: how a group is called where its full name does not fit.
pub(super) fn group_tag(group: &str) -> String {
    let parts = group.trim_end_matches(".k8s.io").split('.').enumerate();
    let tag: String = parts.map(|(i, part)| if i == 0 { part.to_owned() } else { capitalized(part) }).collect();
    if tag.is_empty() { "core".to_owned() } else { tag }
}

fn reason(code: &str) -> &'static str {
    match code {
        "201" => "Created",
        "202" => "Accepted",
        _ => "OK",
    }
}

pub(super) fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
