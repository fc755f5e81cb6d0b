//! What the server serves: groups, versions, resources; and how a word on the command line becomes one of them.
//!
//! The answers are cached under `~/.kube/cache/discovery/<host>` in upstream's layout (`servergroups.json`,
//! `<group>/<version>/serverresources.json`) with upstream's TTL, so the two kubectls share it. Files are read only as
//! far as needed: `get pods` opens two of them.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use api::sort::CompactSort as _;
use api::validation::is_dns1123_subdomain;
use serde_json::{Value, json};

use crate::cli::edit_distance;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::mapping::Group;
use crate::request::Request;

pub(crate) use crate::mapping::{Discovery, Mapping, group_version, known};

const TTL: Duration = Duration::from_secs(6 * 60 * 60);
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

impl Discovery {
    /// Finds a type by what people write: plural, singular, kind, short name, each with `.group` or `.version.group`.
    pub(crate) async fn resolve(&self, cx: &Context, word: &str) -> Result<Mapping> {
        if let Some(found) = self.search(cx, word).await? {
            return Ok(found);
        }
        // The cache may be older than the type.
        if !self.fresh.get() {
            self.refresh(cx).await?;
            if let Some(found) = self.search(cx, word).await? {
                return Ok(found);
            }
        }
        Err(self.no_match(cx, word).await)
    }

    async fn search(&self, cx: &Context, word: &str) -> Result<Option<Mapping>> {
        let parts: Vec<&str> = word.splitn(3, '.').collect();
        if let [name, version, group] = parts.as_slice()
            && let Some(found) = self.search_group(cx, name, Some(group), Some(version)).await?
        {
            return Ok(Some(found));
        }
        match word.split_once('.') {
            Some((name, group)) => self.search_group(cx, name, Some(group), None).await,
            None => self.search_group(cx, word, None, None).await,
        }
    }

    async fn search_group(
        &self,
        cx: &Context,
        name: &str,
        group: Option<&str>,
        version: Option<&str>,
    ) -> Result<Option<Mapping>> {
        let lower = name.to_lowercase();
        let groups = self.groups(cx).await?;
        // An exact group is preferred; a unique prefix of one also does (`deploy.app`).
        let prefix = group.is_some_and(|g| !groups.iter().any(|known| known.name == g));
        // A full name anywhere comes before short names.
        let mut short: Option<Mapping> = None;
        let mut ambiguous: Vec<String> = Vec::new();
        for g in groups.iter() {
            match group {
                Some(wanted) if prefix && version.is_none() && !g.name.starts_with(wanted) => continue,
                Some(wanted) if !(prefix && version.is_none()) && g.name != wanted => continue,
                _ => {}
            }
            for v in &g.versions {
                if version.is_some_and(|wanted| wanted != v) {
                    continue;
                }
                let resources = match self.resources(cx, &g.name, v).await {
                    Ok(r) => r,
                    // One group's server being away must not hide the others.
                    Err(Failure::Status(_)) => continue,
                    Err(e) => return Err(e),
                };
                let found = resources
                    .iter()
                    .find(|m| m.resource == lower || m.singular == lower || m.kind.to_lowercase() == lower);
                if let Some(m) = found {
                    return Ok(Some(m.clone()));
                }
                for m in resources.iter().filter(|m| m.short_names.contains(&lower)) {
                    match &short {
                        None => short = Some(m.clone()),
                        Some(first) if first.group == m.group && first.resource == m.resource => {}
                        Some(_) => ambiguous.push(m.group_resource()),
                    }
                }
            }
        }
        if short.is_some() {
            for other in ambiguous {
                cx.warn(&format!("short name \"{name}\" could also match lower priority resource {other}"));
            }
        }
        Ok(short)
    }

    /// The type of an object in a file.
    pub(crate) async fn of_kind(&self, cx: &Context, api_version: &str, kind: &str) -> Result<Option<Mapping>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        for attempt in 0..2 {
            if attempt == 1 {
                if self.fresh.get() {
                    break;
                }
                self.refresh(cx).await?;
            }
            let groups = self.groups(cx).await?;
            if !groups.iter().any(|g| g.name == group && g.versions.iter().any(|v| v == version)) {
                continue;
            }
            match self.resources(cx, group, version).await {
                Ok(resources) => {
                    if let Some(m) = resources.iter().find(|m| m.kind == kind) {
                        return Ok(Some(m.clone()));
                    }
                }
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// The type of a kind whose version was not said.
    pub(crate) async fn of_group_kind(&self, cx: &Context, group: &str, kind: &str) -> Result<Option<Mapping>> {
        let versions: Vec<String> =
            self.groups(cx).await?.iter().filter(|g| g.name == group).flat_map(|g| g.versions.clone()).collect();
        for version in versions {
            if let Some(found) = self.of_kind(cx, &group_version(group, &version), kind).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The plural types of a category (`all`), in the server's order.
    pub(crate) async fn category(&self, cx: &Context, category: &str) -> Result<Vec<Mapping>> {
        let mut out: Vec<Mapping> = Vec::new();
        for m in self.preferred(cx).await? {
            if m.categories.iter().any(|c| c == category)
                && !out.iter().any(|o| o.resource == m.resource && o.group == m.group)
            {
                out.push(m);
            }
        }
        Ok(out)
    }

    /// Every type once, in its preferred version.
    pub(crate) async fn preferred(&self, cx: &Context) -> Result<Vec<Mapping>> {
        let mut out: Vec<Mapping> = Vec::new();
        for g in self.groups(cx).await?.iter() {
            let start = out.len();
            for v in &g.versions {
                let Ok(resources) = self.resources(cx, &g.name, v).await else { continue };
                for m in resources.iter() {
                    if !out[start..].iter().any(|o| o.resource == m.resource) {
                        out.push(m.clone());
                    }
                }
            }
        }
        Ok(out)
    }

    /// `group/version` of everything served.
    pub(crate) async fn group_versions(&self, cx: &Context) -> Result<Vec<String>> {
        let groups = self.groups(cx).await?;
        Ok(groups.iter().flat_map(|g| g.versions.iter().map(|v| group_version(&g.name, v))).collect())
    }

    /// Asks the server now, whatever the cache says.
    pub(crate) async fn refresh(&self, cx: &Context) -> Result<()> {
        *self.groups.borrow_mut() = None;
        self.resources.borrow_mut().clear();
        self.fresh.set(true);
        self.groups(cx).await.map(|_| ())
    }

    /// What `/version` said, while the cache is fresh.
    pub(crate) fn cached_version(&self) -> Option<Value> {
        read_cached(&self.dir.join("serverversion.json"))
    }

    pub(crate) fn keep_version(&self, version: &Value) {
        write_cached(&self.dir.join("serverversion.json"), version);
    }

    async fn groups(&self, cx: &Context) -> Result<Rc<Vec<Group>>> {
        if let Some(groups) = self.groups.borrow().clone() {
            return Ok(groups);
        }
        let file = self.dir.join("servergroups.json");
        if !self.fresh.get()
            && let Some(list) = read_cached(&file)
        {
            let groups = Rc::new(parse_groups(&list));
            *self.groups.borrow_mut() = Some(groups.clone());
            return Ok(groups);
        }
        self.fresh.set(true);
        let core = Request::get("/api").accept(AGGREGATED).value(cx).await;
        let named = Request::get("/apis").accept(AGGREGATED).value(cx).await;
        let mut entries = Vec::new();
        let mut failures = Vec::new();
        for (answer, legacy_core) in [(core, true), (named, false)] {
            match answer {
                Ok(list) if list["kind"] == "APIGroupDiscoveryList" => entries.extend(self.take_aggregated(&list)),
                Ok(list) if legacy_core => entries.extend(legacy_core_group(&list)),
                Ok(list) => entries.extend(list["groups"].as_array().cloned().unwrap_or_default()),
                // A server without one of the two roots still has the other.
                Err(e) if e.is_not_found() || e.code() == 403 => failures.push(e),
                Err(e) => return Err(e),
            }
        }
        if entries.is_empty()
            && let Some(e) = failures.into_iter().next()
        {
            return Err(e);
        }
        let list = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": entries});
        write_cached(&file, &list);
        let groups = Rc::new(parse_groups(&list));
        *self.groups.borrow_mut() = Some(groups.clone());
        Ok(groups)
    }

    /// Aggregated discovery tells everything at once: keep the resource lists too.
    fn take_aggregated(&self, list: &Value) -> Vec<Value> {
        let mut groups = Vec::new();
        for item in list["items"].as_array().into_iter().flatten() {
            let group = item["metadata"]["name"].as_str().unwrap_or("");
            let mut versions = Vec::new();
            for v in item["versions"].as_array().into_iter().flatten() {
                // Stale versions are those whose own server did not answer.
                if v["freshness"] == "Stale" {
                    continue;
                }
                let version = v["version"].as_str().unwrap_or("");
                let gv = group_version(group, version);
                versions.push(json!({"groupVersion": gv, "version": version}));
                let file = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": gv,
                                  "resources": flatten_resources(v)});
                if let Some(place) = self.place_of(group, version) {
                    write_cached(&place, &file);
                }
                self.resources.borrow_mut().insert(gv, Rc::new(parse_resources(&file, group, version)));
            }
            if let Some(preferred) = versions.first().cloned() {
                groups.push(json!({"name": group, "versions": versions, "preferredVersion": preferred}));
            }
        }
        groups
    }

    /// Where the types of a version are kept. The server names groups and versions, so what is no name of theirs is kept
    /// nowhere: it may lead to the cache of another server, or anywhere else on this machine.
    fn place_of(&self, group: &str, version: &str) -> Option<PathBuf> {
        let is_known = (group.is_empty() || is_dns1123_subdomain(group)) && is_dns1123_subdomain(version);
        is_known.then(|| self.dir.join(group_version(group, version)).join("serverresources.json"))
    }

    async fn resources(&self, cx: &Context, group: &str, version: &str) -> Result<Rc<Vec<Mapping>>> {
        let gv = group_version(group, version);
        if let Some(found) = self.resources.borrow().get(&gv) {
            return Ok(found.clone());
        }
        let place = self.place_of(group, version);
        let cached = place.as_deref().filter(|_| !self.fresh.get()).and_then(read_cached);
        let list = match cached {
            Some(list) => list,
            None => {
                let root = if group.is_empty() { "/api" } else { "/apis" };
                let list = Request::get(format!("{root}/{gv}")).value(cx).await?;
                if let Some(place) = &place {
                    write_cached(place, &list);
                }
                list
            }
        };
        let parsed = Rc::new(parse_resources(&list, group, version));
        self.resources.borrow_mut().insert(gv, parsed.clone());
        Ok(parsed)
    }

    async fn no_match(&self, cx: &Context, word: &str) -> Failure {
        let parts: Vec<&str> = word.splitn(2, '.').collect();
        let name = parts[0];
        let mut best: Option<(usize, String)> = None;
        for m in self.preferred(cx).await.unwrap_or_default() {
            for candidate in std::iter::once(&m.resource).chain([&m.singular]).chain(&m.short_names) {
                let distance = edit_distance(&name.to_lowercase(), candidate);
                if distance <= 2 && distance < name.len() && best.as_ref().is_none_or(|(d, _)| distance < *d) {
                    best = Some((distance, m.group_resource()));
                }
            }
        }
        Failure::NoResource { resource: name.to_owned(), suggestion: best.map(|(_, s)| s) }
    }
}

fn read_cached(file: &Path) -> Option<Value> {
    let modified = std::fs::metadata(file).ok()?.modified().ok()?;
    if modified.elapsed().is_ok_and(|age| age > TTL) {
        return None;
    }
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// The cache is a convenience: a read-only home only costs speed. Others of this machine neither read nor change it,
/// whatever the umask allows: what is in it decides where later commands send their requests.
fn write_cached(file: &Path, value: &Value) {
    let Some(dir) = file.parent() else { return };
    if std::fs::DirBuilder::new().recursive(true).mode(0o750).create(dir).is_err() {
        return;
    }
    let _ = ::files::replace_unsynced(file, value.to_string().as_bytes(), 0o660);
}

fn legacy_core_group(list: &Value) -> Vec<Value> {
    let versions: Vec<Value> =
        list["versions"].as_array().into_iter().flatten().map(|v| json!({"groupVersion": v, "version": v})).collect();
    match versions.first().cloned() {
        Some(preferred) => vec![json!({"name": "", "versions": versions, "preferredVersion": preferred})],
        None => Vec::new(),
    }
}

fn parse_groups(list: &Value) -> Vec<Group> {
    let mut groups: Vec<Group> = list["groups"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|g| {
            let preferred = g["preferredVersion"]["version"].as_str().unwrap_or("").to_owned();
            let mut versions: Vec<String> = g["versions"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|v| Some(v["version"].as_str()?.to_owned()))
                .collect();
            versions.compact_sort_by_key(|v| *v != preferred);
            Group { name: g["name"].as_str().unwrap_or("").to_owned(), versions }
        })
        .collect();
    // The core group is not part of /apis but always first in what people mean.
    groups.compact_sort_by_key(|g| !g.name.is_empty());
    groups
}

fn flatten_resources(version: &Value) -> Vec<Value> {
    let mut out = Vec::new();
    for r in version["resources"].as_array().into_iter().flatten() {
        let name = r["resource"].as_str().unwrap_or("");
        let namespaced = r["scope"] == "Namespaced";
        let mut entry = json!({"name": name, "singularName": r["singularResource"], "namespaced": namespaced,
                               "kind": r["responseKind"]["kind"], "verbs": r["verbs"]});
        for key in ["shortNames", "categories"] {
            if !r[key].is_null() {
                entry[key] = r[key].clone();
            }
        }
        // A type without a kind of its own (only subresources) is not listed upstream either.
        if r["responseKind"]["kind"].as_str().is_some_and(|k| !k.is_empty()) {
            out.push(entry);
        }
        for s in r["subresources"].as_array().into_iter().flatten() {
            let sub = s["subresource"].as_str().unwrap_or("");
            let mut entry = json!({"name": format!("{name}/{sub}"), "singularName": "", "namespaced": namespaced,
                                   "kind": s["responseKind"]["kind"], "verbs": s["verbs"]});
            let (group, v) = (&s["responseKind"]["group"], &s["responseKind"]["version"]);
            if group.as_str().is_some_and(|g| !g.is_empty()) {
                entry["group"] = group.clone();
                entry["version"] = v.clone();
            }
            out.push(entry);
        }
    }
    out
}

fn parse_resources(list: &Value, group: &str, version: &str) -> Vec<Mapping> {
    let strings = |v: &Value| -> Vec<String> {
        v.as_array().into_iter().flatten().filter_map(|s| Some(s.as_str()?.to_owned())).collect()
    };
    list["resources"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|r| r["name"].as_str().is_some_and(|n| !n.contains('/')))
        .map(|r| {
            let kind = r["kind"].as_str().unwrap_or("").to_owned();
            Mapping {
                group: group.to_owned(),
                version: version.to_owned(),
                resource: r["name"].as_str().unwrap_or("").to_owned(),
                singular: match r["singularName"].as_str() {
                    Some(s) if !s.is_empty() => s.to_owned(),
                    _ => kind.to_lowercase(),
                },
                kind,
                namespaced: r["namespaced"].as_bool().unwrap_or(false),
                verbs: strings(&r["verbs"]),
                short_names: strings(&r["shortNames"]),
                categories: strings(&r["categories"]),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CVE-2019-11244.
    #[test]
    fn security_others_cannot_change_the_cache() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("cache/discovery/host/apps/v1/serverresources.json");
        write_cached(&file, &json!({"a": 1}));
        write_cached(&file, &json!({"a": 2}));
        assert_eq!(read_cached(&file).unwrap()["a"], 2);
        // The file, and the five folders that were made for it.
        for path in file.ancestors().take(6) {
            let mode = std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode & 0o007, 0, "{}: {mode:o}", path.display());
        }
    }

    #[test]
    fn security_a_server_does_not_choose_where_its_answers_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let (cache, outside) = (home.path().join("cache"), home.path().join("outside"));
        let discovery = Discovery::new(&cache, "https://a:6443");
        for (group, version) in [
            ("apps", "v1"),
            ("../b_6443/apps", "v1"),
            (outside.to_str().unwrap(), "v1"),
            ("apps", "../../../v2"),
            ("", ".."),
        ] {
            let versions = json!([{"version": version, "resources": []}]);
            discovery.take_aggregated(&json!({"items": [{"metadata": {"name": group}, "versions": versions}]}));
        }
        assert!(cache.join("discovery/a_6443/apps/v1/serverresources.json").exists());
        for elsewhere in ["discovery/b_6443", "discovery/serverresources.json", "v2"] {
            assert!(!cache.join(elsewhere).exists(), "{elsewhere}");
        }
        assert!(!outside.exists());
    }

    #[test]
    fn aggregated_discovery_becomes_lists() {
        let version = json!({"version": "v1", "resources": [
            {"resource": "pods", "singularResource": "pod", "scope": "Namespaced", "verbs": ["get"], "shortNames": ["po"],
             "categories": ["all"], "responseKind": {"group": "", "version": "v1", "kind": "Pod"},
             "subresources": [{"subresource": "log", "verbs": ["get"], "responseKind": {"kind": "Pod"}}]}]});
        let list = json!({"resources": flatten_resources(&version)});
        assert_eq!(list["resources"][1]["name"], "pods/log");
        let parsed = parse_resources(&list, "", "v1");
        assert_eq!(parsed.len(), 1);
        assert_eq!(parsed[0].object_path("d", "x"), "/api/v1/namespaces/d/pods/x");
        assert_eq!(parsed[0].kind_group(), "pod");
    }

    #[test]
    fn distances() {
        for (a, b, d) in [("pods", "pods", 0), ("pdos", "pods", 2), ("deploymet", "deployment", 1)] {
            assert_eq!(edit_distance(a, b), d);
        }
    }
}
