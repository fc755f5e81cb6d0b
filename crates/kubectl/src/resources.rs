//! Which objects a command is about: `pods`, `pod/web`, `deploy,svc -l app=x`, `-f file`, `all -A`.
//!
//! [`select`] decides from words and flags and sends nothing but discovery; [`Selection::fetch`] gets the objects.

use serde_json::Value;

use crate::context::Context;
use crate::discovery::Mapping;
use crate::failure::{Failure, Result};
use crate::files;
use crate::manifests::{self, Manifest};
use crate::request::{Request, name_segment};
use crate::validation::Checks;

/// One object of a command.
#[derive(Clone, Debug)]
pub(crate) struct Info {
    pub(crate) mapping: Mapping,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) object: Value,
    /// The file it came from, if any.
    pub(crate) source: String,
}

impl Info {
    pub(crate) fn path(&self) -> String {
        self.mapping.object_path(&self.namespace, &self.name)
    }

    /// `deployment.apps/web`
    pub(crate) fn display(&self) -> String {
        format!("{}/{}", self.mapping.kind_group(), self.name)
    }

    /// Most requests need a name; a file may leave it to the server.
    pub(crate) fn named(&self) -> Result<()> {
        name_segment(&self.name).map(drop)
    }

    pub(crate) async fn get(&self, cx: &Context) -> Result<Value> {
        self.named()?;
        Request::get(self.path()).value(cx).await
    }
}

/// What the words named, before anything is fetched.
pub(crate) enum Selection {
    One { mapping: Mapping, namespace: String, name: String },
    Collection { mapping: Mapping, namespace: String },
    File(Box<Info>),
}

/// How a command reads its words.
#[derive(Clone, Default)]
pub(crate) struct Options {
    /// `pods` alone means all of them (get, describe); else a name, selector or `--all` is needed.
    pub(crate) types_alone: bool,
    /// The error when no words were given.
    pub(crate) missing: Option<Failure>,
    /// Fetch the live object for those that came from files too.
    pub(crate) latest: bool,
    /// Files are checked later: what is in them is not sent as it is.
    pub(crate) unchecked: bool,
    /// `--selector` is about something else than the command's own objects.
    pub(crate) foreign_selector: bool,
    /// Words to use instead of the command's.
    pub(crate) args: Option<Vec<String>>,
}

/// What was named, and what of it could not be understood: most commands go on with the rest and fail at the end.
#[derive(Default)]
pub(crate) struct Selected {
    pub(crate) found: Vec<Selection>,
    pub(crate) failures: Vec<Failure>,
    /// One name, or one file: one object is printed as itself, not as a list of one.
    pub(crate) implies_one: bool,
}

impl Selected {
    /// For commands that do nothing unless all of it is understood.
    pub(crate) fn complete(self) -> Result<Vec<Selection>> {
        Failure::all(self.failures)?;
        Ok(self.found)
    }
}

pub(crate) async fn select(cx: &Context, options: &Options) -> Result<Selected> {
    let flag = |name: &str| cx.flags.has_flag(name) && cx.flags.bool(name);
    let all_namespaces = flag("all-namespaces");
    let (namespace, explicit) = cx.namespace()?;
    let own_selector = cx.flags.has_flag("selector") && !options.foreign_selector;
    let selector = if own_selector { cx.flags.string("selector") } else { String::new() };
    let field_selector =
        if cx.flags.has_flag("field-selector") { cx.flags.string("field-selector") } else { String::new() };
    let selects = !selector.is_empty() || !field_selector.is_empty();
    let all = flag("all");
    let args: Vec<String> = options.args.clone().unwrap_or_else(|| cx.args().to_vec());
    if all && selects && !cx.flags.has_flag("prune") {
        return Err(Failure::message("setting 'all' parameter but found a non empty selector. "));
    }

    let has_files = (cx.flags.has_flag("filename") && !cx.flags.list("filename").is_empty())
        || (cx.flags.has_flag("kustomize") && !cx.flags.string("kustomize").is_empty());
    if has_files {
        if !args.is_empty() {
            return Err(Failure::message(if args[0].contains('/') {
                "resource/name arguments cannot be provided when a path is specified"
            } else if args.len() > 1 {
                "name cannot be provided when a path is specified"
            } else {
                "when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well"
            }));
        }
        let checks = if options.unchecked { Checks::None } else { Checks::of(cx).await? };
        let mut selected = select_files(cx, &checks, &namespace, explicit).await?;
        if !selector.is_empty() {
            let mut kept = Vec::new();
            for selection in selected.found {
                if let Selection::File(info) = &selection
                    && crate::selector::matches_labels(&selector, &info.object["metadata"]["labels"])?
                {
                    kept.push(selection);
                }
            }
            selected.found = kept;
        }
        return Ok(selected);
    }
    let found = select_words(cx, options, &args, &namespace, all_namespaces, all, selects).await?;
    let names = args.iter().filter(|word| word.contains('/')).count().max(args.len().saturating_sub(1));
    Ok(Selected { found, failures: Vec::new(), implies_one: names == 1 })
}

/// A document that fails validation, or cannot be read, ends its file; one of an unknown type does not.
async fn select_files(cx: &Context, checks: &Checks, namespace: &str, explicit: bool) -> Result<Selected> {
    let streams = files::read_streams(cx).await?;
    let implies_one = streams.len() == 1 && streams.iter().all(|stream| stream.source != files::STDIN);
    let mut out = Selected { implies_one, ..Selected::default() };
    for stream in streams {
        let mut end = stream.failure;
        for document in stream.documents {
            if let Err(e) = checks.check(&document, &stream.source) {
                end = Some(e);
                break;
            }
            let mut manifests = Vec::new();
            if let Err(e) = manifests::flatten(document, &stream.source, &mut manifests) {
                out.failures.push(e);
            }
            for manifest in manifests {
                match file_info(cx, manifest, namespace, explicit).await {
                    Ok(info) => out.found.push(Selection::File(Box::new(info))),
                    Err(e @ Failure::Connect { .. }) => return Err(e),
                    Err(e) => out.failures.push(e),
                }
            }
        }
        out.failures.extend(end);
    }
    Ok(out)
}

async fn select_words(
    cx: &Context,
    options: &Options,
    args: &[String],
    namespace: &str,
    all_namespaces: bool,
    all: bool,
    selects: bool,
) -> Result<Vec<Selection>> {
    let collection_namespace = if all_namespaces { "" } else { namespace };

    if args.is_empty() {
        return Err(options.missing.clone().unwrap_or_else(|| {
            Failure::message(
                "You must provide one or more resources by argument or filename.\nExample resource specifications include:\n   '-f rsrc.yaml'\n   '--filename=rsrc.json'\n   '<resource> <name>'\n   '<resource>'",
            )
        }));
    }

    // `type/name` words, all of them or none.
    if args.iter().any(|a| a.contains('/')) {
        if args.iter().any(|a| !a.contains('/')) {
            return Err(Failure::message(
                "there is no need to specify a resource type as a separate argument when passing arguments in resource/name form (e.g. 'kubectl get resource/<resource_name>' instead of 'kubectl get resource resource/<resource_name>'",
            ));
        }
        if all || selects {
            return Err(Failure::message(
                "selectors and the all flag cannot be used when passing resource/name arguments",
            ));
        }
        let mut out = Vec::new();
        for arg in args {
            let parts: Vec<&str> = arg.split('/').collect();
            let [kind, name] = parts.as_slice() else {
                return Err(Failure::message("arguments in resource/name form may not have more than one slash"));
            };
            if kind.is_empty() || name.is_empty() || kind.contains(',') {
                return Err(Failure::message("arguments in resource/name form must have a single resource and name"));
            }
            let mapping = cx.discovery()?.resolve(cx, kind).await?;
            out.push(one(mapping, namespace, all_namespaces, name)?);
        }
        return Ok(out);
    }

    let mut mappings: Vec<Mapping> = Vec::new();
    for word in args[0].split(',').filter(|w| !w.is_empty()) {
        // A category expands; `all` is the one everybody serves.
        let category = if word == "all" || word == "api-extensions" {
            cx.discovery()?.category(cx, word).await?
        } else {
            Vec::new()
        };
        if !category.is_empty() {
            for m in category {
                if !mappings.contains(&m) {
                    mappings.push(m);
                }
            }
            continue;
        }
        match cx.discovery()?.resolve(cx, word).await {
            Ok(m) => {
                if !mappings.contains(&m) {
                    mappings.push(m);
                }
            }
            Err(failure @ Failure::NoResource { .. }) => {
                let category = cx.discovery()?.category(cx, word).await?;
                if category.is_empty() {
                    return Err(failure);
                }
                mappings.extend(category);
            }
            Err(e) => return Err(e),
        }
    }
    let names = &args[1..];
    if !names.is_empty() {
        if selects || all {
            return Err(Failure::message("name cannot be provided when a selector is specified"));
        }
        let mut out = Vec::new();
        for mapping in &mappings {
            for name in names {
                out.push(one(mapping.clone(), namespace, all_namespaces, name)?);
            }
        }
        return Ok(out);
    }
    if !options.types_alone && !selects && !all {
        return Err(Failure::message("resource(s) were provided, but no name was specified"));
    }
    Ok(mappings
        .into_iter()
        .map(|mapping| {
            let namespace = if mapping.namespaced { collection_namespace.to_owned() } else { String::new() };
            Selection::Collection { mapping, namespace }
        })
        .collect())
}

fn one(mapping: Mapping, namespace: &str, all_namespaces: bool, name: &str) -> Result<Selection> {
    if mapping.namespaced && all_namespaces {
        return Err(Failure::message("a resource cannot be retrieved by name across all namespaces"));
    }
    name_segment(name)?;
    let namespace = if mapping.namespaced { namespace.to_owned() } else { String::new() };
    Ok(Selection::One { mapping, namespace, name: name.to_owned() })
}

/// Finds the type of an object from a file and settles its namespace.
async fn file_info(cx: &Context, manifest: Manifest, namespace: &str, explicit: bool) -> Result<Info> {
    let Manifest { mut object, source } = manifest;
    let kind = object["kind"].as_str().unwrap_or("").to_owned();
    let api_version = object["apiVersion"].as_str().unwrap_or("").to_owned();
    let decode = |what: String| Failure::message(format!("unable to decode \"{source}\": {what}"));
    if kind.is_empty() {
        let text = crate::printers::json::compact(&object);
        return Err(decode(format!("Object 'Kind' is missing in '{text}'")));
    }
    for field in ["name", "namespace"] {
        let value = &object["metadata"][field];
        if !value.is_null() && !value.is_string() {
            return Err(decode(format!(
                "json: cannot unmarshal {} into Go struct field ObjectMeta.metadata.{field} of type string",
                api::go::kind(value)
            )));
        }
    }
    let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let own = object["metadata"]["namespace"].as_str().unwrap_or("").to_owned();
    // Without a server there is nobody to ask, and no need to.
    if cx.flags.has_flag("local") && cx.flags.bool("local") {
        let mapping =
            crate::discovery::known(&api_version, &format!("{}s", kind.to_lowercase()), &kind, !own.is_empty());
        return Ok(Info { mapping, namespace: own, name, object, source });
    }
    let Some(mapping) = cx.discovery()?.of_kind(cx, &api_version, &kind).await? else {
        return Err(Failure::message(format!(
            "resource mapping not found for name: \"{name}\" namespace: \"{own}\" from \"{source}\": no matches for kind \"{kind}\" in version \"{api_version}\"\nensure CRDs are installed first"
        )));
    };
    let mut settled = String::new();
    if mapping.namespaced {
        if explicit && !own.is_empty() && own != namespace {
            return Err(Failure::message(format!(
                "the namespace from the provided object \"{own}\" does not match the namespace \"{namespace}\". You must pass '--namespace={own}' to perform this operation."
            )));
        }
        settled = if own.is_empty() { namespace.to_owned() } else { own };
        object["metadata"]["namespace"] = Value::String(settled.clone());
    }
    Ok(Info { mapping, namespace: settled, name, object, source })
}

/// Selects and fetches, taking lists apart; failures of single objects do not hide the others.
pub(crate) async fn infos(cx: &Context, options: &Options) -> Result<(Vec<Info>, Vec<Failure>)> {
    let mut out = Vec::new();
    let mut failures = Vec::new();
    let selected = select(cx, options).await?;
    for selection in selected.found {
        match selection.fetch(cx, options.latest).await {
            Ok(found) => out.extend(found),
            Err(e) => failures.push(e),
        }
    }
    failures.extend(selected.failures);
    Ok((out, failures))
}

/// All the objects, or the first failure.
pub(crate) async fn all_infos(cx: &Context, options: &Options) -> Result<Vec<Info>> {
    let (infos, failures) = infos(cx, options).await?;
    Failure::all(failures)?;
    Ok(infos)
}

impl Selection {
    pub(crate) async fn fetch(self, cx: &Context, latest: bool) -> Result<Vec<Info>> {
        match self {
            Selection::One { mapping, namespace, name } => {
                let object = Request::get(mapping.object_path(&namespace, &name)).value(cx).await?;
                Ok(vec![Info { mapping, namespace, name, object, source: String::new() }])
            }
            Selection::File(mut info) => {
                if latest {
                    info.object = info.get(cx).await?;
                }
                Ok(vec![*info])
            }
            Selection::Collection { mapping, namespace } => {
                let list = list(cx, &mapping, &namespace).await?;
                Ok(items(&list)
                    .into_iter()
                    .map(|object| Info {
                        namespace: object["metadata"]["namespace"].as_str().unwrap_or("").to_owned(),
                        name: object["metadata"]["name"].as_str().unwrap_or("").to_owned(),
                        mapping: mapping.clone(),
                        object,
                        source: String::new(),
                    })
                    .collect())
            }
        }
    }
}

/// A list request with the command's selectors.
pub(crate) fn list_request(cx: &Context, mapping: &Mapping, namespace: &str) -> Request {
    let mut request = Request::get(mapping.path(namespace));
    for (flag, parameter) in [("selector", "labelSelector"), ("field-selector", "fieldSelector")] {
        if cx.flags.has_flag(flag) && !cx.flags.string(flag).is_empty() {
            request = request.query(parameter, cx.flags.string(flag));
        }
    }
    request
}

/// The whole list, in the server's chunks.
pub(crate) async fn list(cx: &Context, mapping: &Mapping, namespace: &str) -> Result<Value> {
    list_chunks(cx, mapping, namespace, |r| r).await
}

pub(crate) async fn list_chunks(
    cx: &Context,
    mapping: &Mapping,
    namespace: &str,
    adjust: impl Fn(Request) -> Request,
) -> Result<Value> {
    in_chunks(cx, || adjust(list_request(cx, mapping, namespace))).await.map_err(|e| selectors_named(cx, mapping, e))
}

/// The items of a collection for which `request` asks, in the server's chunks.
pub(crate) async fn all_items(cx: &Context, request: impl Fn() -> Request) -> Result<Vec<Value>> {
    Ok(items(&in_chunks(cx, request).await?))
}

async fn in_chunks(cx: &Context, request: impl Fn() -> Request) -> Result<Value> {
    let chunk = if cx.flags.has_flag("chunk-size") { cx.flags.int("chunk-size") } else { 500 };
    let page = |token: &str| {
        let request = request().query_if(chunk > 0, "limit", chunk.to_string());
        request.query_if(!token.is_empty(), "continue", token)
    };
    let mut whole: Option<Value> = None;
    let mut answer = page("").send(cx).await?;
    loop {
        let token = answer.continue_token();
        let (decoded, next) = if token.is_empty() {
            (answer.value(), None)
        } else {
            // The next page is on its way while this one is decoded.
            let decoding = tokio::task::spawn_blocking(move || answer.value());
            let (decoded, next) = tokio::join!(decoding, page(&token).send(cx));
            (decoded.map_err(Failure::of)?, Some(next))
        };
        let mut decoded = decoded?;
        match &mut whole {
            None => whole = Some(decoded),
            Some(all) => {
                for key in ["items", "rows"] {
                    if let (Some(Value::Array(to)), Some(Value::Array(from))) = (all.get_mut(key), decoded.get_mut(key))
                    {
                        to.append(from);
                    }
                }
            }
        }
        if let Some(next) = next {
            answer = next?;
            continue;
        }
        let mut whole = whole.unwrap_or(Value::Null);
        if let Some(meta) = whole["metadata"].as_object_mut() {
            meta.remove("continue");
            meta.remove("remainingItemCount");
        }
        return Ok(whole);
    }
}

/// A refusal of a selector says which type and selectors it was about.
pub(crate) fn selectors_named(cx: &Context, mapping: &Mapping, failure: Failure) -> Failure {
    let given = |flag: &str| if cx.flags.has_flag(flag) { cx.flags.string(flag) } else { String::new() };
    let (labels, fields) = (given("selector"), given("field-selector"));
    if failure.reason() != "BadRequest" || (labels.is_empty() && fields.is_empty()) {
        return failure;
    }
    failure.context(format!(
        "Unable to find \"{}\" that match label selector \"{labels}\", field selector \"{fields}\"",
        mapping.resource_text()
    ))
}

/// The items of a list, each with its own kind and version (lists of built-in types leave them out).
pub(crate) fn items(list: &Value) -> Vec<Value> {
    let kind = list["kind"].as_str().unwrap_or("").trim_end_matches("List").to_owned();
    let mut out = Vec::new();
    for item in list["items"].as_array().into_iter().flatten() {
        let mut item = item.clone();
        if item["kind"].is_null() && !kind.is_empty() {
            item["kind"] = Value::String(kind.clone());
            item["apiVersion"] = list["apiVersion"].clone();
        }
        out.push(item);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body_util::BodyExt;
    use serde_json::json;

    use super::*;

    /// The whole list that a server sends in these pages, by the query that asks for each; and the queries that came.
    async fn listed(pages: &'static [(&'static str, &'static str)]) -> (Result<Value>, Vec<String>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let queries = asked.clone();
        let send: client::Handler = Arc::new(move |request: http::Request<bytes::Bytes>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let body = pages.iter().find(|(of, _)| *of == query).map_or("", |(_, body)| *body);
            queries.lock().unwrap().push(query);
            Box::pin(async move {
                let body = http_body_util::Full::new(bytes::Bytes::from(body));
                http::Response::new(body.map_err(|never| -> client::BoxError { match never {} }).boxed_unsync())
            })
        });
        let cx = Context::for_tests(client::Client::in_process(send, api::UserInfo::default()));
        let whole = in_chunks(&cx, || Request::get("/api/v1/pods")).await;
        let asked = asked.lock().unwrap().clone();
        (whole, asked)
    }

    #[tokio::test]
    async fn pages_become_one_list() {
        let (whole, asked) = listed(&[
            ("limit=500", r#"{"kind":"Table","metadata":{"continue":"a\"b","remainingItemCount":2},"rows":[1,2]}"#),
            ("continue=a%22b&limit=500", r#"{"kind":"Table","metadata":{"continue":"c"},"rows":[3]}"#),
            ("continue=c&limit=500", r#"{"kind":"Table","metadata":{"continue":""},"rows":[4]}"#),
        ])
        .await;
        assert_eq!(whole.unwrap(), json!({"kind": "Table", "metadata": {}, "rows": [1, 2, 3, 4]}));
        assert_eq!(asked, ["limit=500", "continue=a%22b&limit=500", "continue=c&limit=500"]);
    }

    #[tokio::test]
    async fn a_page_that_cannot_be_read_is_a_failure() {
        let damaged = listed(&[
            ("limit=500", r#"{"metadata":{"continue":"a"},"items":[1"#),
            ("continue=a&limit=500", r#"{"metadata":{},"items":[2]}"#),
        ]);
        assert!(damaged.await.0.is_err());
        let broken_off = listed(&[("limit=500", r#"{"metadata":{"continue":"a"},"items":[1]}"#)]);
        assert!(broken_off.await.0.is_err());
    }
}
