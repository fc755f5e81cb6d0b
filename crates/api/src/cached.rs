//! Objects as the caches of controllers and scheduler hold them.
//!
//! A pod's type takes 19 KB for the 3 KB that a pod is, because every optional field has its room in it, and most of
//! that is a spec which it shares with all other pods of its template. So pods of one template share one decoded spec;
//! what is a pod's own in it, the node and the random name of its token volume, is kept beside it. Whoever decodes the
//! same version of a pod again in this process, for another cache, gets the same pod.
//!
//! Invariant: nothing is lost. [`Pod::complete`] is the pod that was decoded, and nothing else can be written back:
//! what is here has no encoding.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use k8s_openapi::api::core::v1::{Pod as CompletePod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::scan;

/// A pod. Clones share it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod(Arc<Parts>);

/// The fields of a [`Pod`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parts {
    pub metadata: ObjectMeta,
    pub spec: Option<Spec>,
    pub status: Option<Box<PodStatus>>,
}

/// A pod's spec, which reads like a [`PodSpec`] but for the name of the token volume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// Shared by all pods that have the same.
    template: Arc<PodSpec>,
    /// Not in the template, whose own is never set.
    pub node_name: Option<String>,
    /// What the volume is called that the template calls [`TOKEN_VOLUME`].
    token_volume: Option<Box<str>>,
}

/// Admission gives every pod a volume with its tokens, whose name is this and five random letters.
const TOKEN_VOLUME: &str = "kube-api-access-";
const RANDOM: usize = 5;

impl Deref for Pod {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl DerefMut for Pod {
    fn deref_mut(&mut self) -> &mut Parts {
        Arc::make_mut(&mut self.0)
    }
}

impl Deref for Spec {
    type Target = PodSpec;

    fn deref(&self) -> &PodSpec {
        &self.template
    }
}

impl DerefMut for Spec {
    fn deref_mut(&mut self) -> &mut PodSpec {
        Arc::make_mut(&mut self.template)
    }
}

impl k8s_openapi::Resource for Pod {
    const API_VERSION: &'static str = CompletePod::API_VERSION;
    const GROUP: &'static str = CompletePod::GROUP;
    const KIND: &'static str = CompletePod::KIND;
    const VERSION: &'static str = CompletePod::VERSION;
    const URL_PATH_SEGMENT: &'static str = CompletePod::URL_PATH_SEGMENT;
    type Scope = <CompletePod as k8s_openapi::Resource>::Scope;
}

impl k8s_openapi::Metadata for Pod {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut Arc::make_mut(&mut self.0).metadata
    }
}

impl Pod {
    /// The pod as the API has it.
    pub fn complete(&self) -> CompletePod {
        CompletePod {
            metadata: self.metadata.clone(),
            spec: self.spec.as_ref().map(Spec::complete),
            status: self.status.as_deref().cloned(),
        }
    }
}

impl Spec {
    fn complete(&self) -> PodSpec {
        let mut spec = PodSpec { node_name: self.node_name.clone(), ..(*self.template).clone() };
        if let Some(own) = &self.token_volume {
            let restore = |name: &mut String| {
                if name == TOKEN_VOLUME {
                    (**own).clone_into(name);
                }
            };
            for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
                container.volume_mounts.iter_mut().flatten().for_each(|mount| restore(&mut mount.name));
            }
            for container in spec.ephemeral_containers.iter_mut().flatten() {
                container.volume_mounts.iter_mut().flatten().for_each(|mount| restore(&mut mount.name));
            }
            spec.volumes.iter_mut().flatten().for_each(|volume| restore(&mut volume.name));
        }
        spec
    }
}

/// A pod that nobody shares: for those who made it themselves.
impl From<CompletePod> for Pod {
    fn from(pod: CompletePod) -> Pod {
        let CompletePod { metadata, spec, status } = pod;
        Pod(Arc::new(Parts { metadata, spec: spec.map(Spec::from), status: status.map(Box::new) }))
    }
}

impl From<PodSpec> for Spec {
    fn from(mut spec: PodSpec) -> Spec {
        let node_name = spec.node_name.take();
        Spec { template: Arc::new(spec), node_name, token_volume: None }
    }
}

impl<'de> Deserialize<'de> for Pod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pod, D::Error> {
        // Also checks that the text is JSON: what scans it below relies on that.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        decode(text.get().as_bytes()).map_err(D::Error::custom)
    }
}

/// Pods by a hash of their text, and templates by two.
static PODS: LazyLock<Mutex<Table<u64, Parts>>> = LazyLock::new(Mutex::default);
static TEMPLATES: LazyLock<Mutex<Table<[u64; 2], PodSpec>>> = LazyLock::new(Mutex::default);
/// Nobody outside can find texts with the same hash.
static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);

fn decode(text: &[u8]) -> Result<Pod, serde_json::Error> {
    if text.first() != Some(&b'{') {
        // Whatever the type says of what is no object.
        return serde_json::from_slice::<CompletePod>(text).map(Pod::from);
    }
    let hash = KEYS[0].hash_one(text);
    let paths: [&[&str]; 2] = [&["metadata", "uid"], &["metadata", "resourceVersion"]];
    let version: Vec<_> =
        scan::find_all(text, &paths).into_iter().map(|range| Some(scan::text(&text[range?]))).collect();
    let is_version = |pod: &Parts| {
        let metadata = &pod.metadata;
        [&metadata.uid, &metadata.resource_version].into_iter().zip(&version).all(|(mine, wanted)| {
            mine.as_deref().is_some_and(|mine| !mine.is_empty()) && mine.as_deref() == wanted.as_deref()
        })
    };
    if let Some(known) = lock(&PODS).find(&hash).filter(|known| is_version(known)) {
        return Ok(Pod(known));
    }
    let pod = Arc::new(parts(text)?);
    Ok(Pod(if is_version(&pod) { lock(&PODS).keep(hash, pod, is_version) } else { pod }))
}

fn parts(text: &[u8]) -> Result<Parts, serde_json::Error> {
    let [metadata, spec, status] =
        [&["metadata"], &["spec"], &["status"]].map(|path| scan::find(text, path).map(|range| &text[range]));
    let mut metadata = read::<ObjectMeta>(metadata)?.unwrap_or_default();
    shrink(&mut metadata.owner_references);
    shrink(&mut metadata.finalizers);
    Ok(Parts { metadata, spec: read_spec(spec)?, status: read_status(status)?.map(Box::new) })
}

fn read<T: DeserializeOwned>(text: Option<&[u8]>) -> Result<Option<T>, serde_json::Error> {
    text.map_or(Ok(None), serde_json::from_slice)
}

fn read_status(text: Option<&[u8]>) -> Result<Option<PodStatus>, serde_json::Error> {
    let Some(mut status) = read::<PodStatus>(text)? else { return Ok(None) };
    shrink(&mut status.conditions);
    shrink(&mut status.container_statuses);
    shrink(&mut status.init_container_statuses);
    shrink(&mut status.ephemeral_container_statuses);
    shrink(&mut status.host_ips);
    shrink(&mut status.pod_ips);
    Ok(Some(status))
}

/// Lists grow by doubling while they are read.
fn shrink<T>(list: &mut Option<Vec<T>>) {
    list.iter_mut().for_each(Vec::shrink_to_fit);
}

fn read_spec(text: Option<&[u8]>) -> Result<Option<Spec>, serde_json::Error> {
    let Some(text) = text.filter(|text| text.first() == Some(&b'{')) else {
        return Ok(read::<PodSpec>(text)?.map(|spec| Spec { template: Arc::new(spec), ..Spec::default() }));
    };
    let Own { template, node_name, token_volume } = own(text);
    let hash = [0, 1].map(|key: usize| KEYS[key].hash_one(&template));
    let known = lock(&TEMPLATES).find(&hash);
    let template = match known {
        Some(known) => known,
        None => {
            let mut spec: PodSpec = serde_json::from_slice(&template)?;
            spec.containers.shrink_to_fit();
            shrink(&mut spec.init_containers);
            shrink(&mut spec.tolerations);
            shrink(&mut spec.volumes);
            lock(&TEMPLATES).keep(hash, Arc::new(spec), |_| true)
        }
    };
    let node_name = node_name.map(|range| serde_json::from_slice::<Option<String>>(&text[range])).transpose()?;
    Ok(Some(Spec { template, node_name: node_name.flatten(), token_volume }))
}

/// A spec's text taken apart.
struct Own {
    template: Vec<u8>,
    node_name: Option<Range<usize>>,
    token_volume: Option<Box<str>>,
}

fn own(spec: &[u8]) -> Own {
    let mut node_name = None;
    let mut volumes = None;
    let mut containers = Vec::new();
    // What is left out of the text, in order.
    let mut cuts: Vec<Range<usize>> = Vec::new();
    let mut before = None;
    for (key, value) in scan::members(spec, 0) {
        match key {
            b"nodeName" => {
                let next = scan::skip_space(spec, value.end);
                let has_next = before.is_none() && spec.get(next) == Some(&b',');
                cuts.push(before.unwrap_or(1)..if has_next { next + 1 } else { value.end });
                node_name = Some(value.clone());
            }
            b"volumes" => volumes = Some(value.start),
            b"containers" | b"initContainers" | b"ephemeralContainers" => containers.push(value.start),
            _ => {}
        }
        before = Some(value.end);
    }
    let token = volumes.and_then(|volumes| token_volume(spec, volumes));
    let token_volume = token.as_ref().map(|(name, _)| (*name).into());
    if let Some((name, place)) = token {
        let random = |place: Range<usize>| place.end - 1 - RANDOM..place.end - 1;
        cuts.push(random(place));
        for mounts in containers.iter().flat_map(|list| scan::items(spec, *list)).filter_map(|container| {
            scan::members(spec, container.start).find(|(key, _)| *key == b"volumeMounts").map(|(_, mounts)| mounts)
        }) {
            for mount in scan::items(spec, mounts.start) {
                let named = scan::members(spec, mount.start).find(|(key, _)| *key == b"name");
                let named = named.filter(|(_, place)| unquoted(&spec[place.clone()]) == Some(name));
                cuts.extend(named.map(|(_, place)| random(place)));
            }
        }
    }
    cuts.sort_by_key(|cut| cut.start);
    let mut template = Vec::with_capacity(spec.len());
    let mut from = 0;
    for cut in cuts {
        template.extend_from_slice(&spec[from..cut.start]);
        from = cut.end;
    }
    template.extend_from_slice(&spec[from..]);
    Own { template, node_name, token_volume }
}

/// The name of the token volume, and where it stands with its quotes.
fn token_volume(spec: &[u8], volumes: usize) -> Option<(&str, Range<usize>)> {
    scan::items(spec, volumes).find_map(|volume| {
        let mut name = None;
        let mut is_projected = false;
        for (key, value) in scan::members(spec, volume.start) {
            match key {
                b"name" => name = Some(value),
                b"projected" => is_projected = true,
                _ => {}
            }
        }
        let place = name.filter(|_| is_projected)?;
        let name = unquoted(&spec[place.clone()])?;
        let random = name.strip_prefix(TOKEN_VOLUME)?;
        let is_random = random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_random.then_some((name, place))
    })
}

/// A string without escapes, which names have no use for.
fn unquoted(raw: &[u8]) -> Option<&str> {
    let text = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    std::str::from_utf8(text).ok().filter(|text| !text.contains('\\'))
}

/// What others hold, found by a hash; forgotten some time after they let go of it.
struct Table<K, T> {
    entries: HashMap<K, Weak<T>>,
    /// How many entries there may be before those are looked for that nobody holds any more.
    limit: usize,
}

impl<K, T> Default for Table<K, T> {
    fn default() -> Self {
        Self { entries: HashMap::new(), limit: Self::SMALL }
    }
}

impl<K, T> Table<K, T> {
    const SMALL: usize = 256;
}

impl<K: Eq + Hash, T> Table<K, T> {
    fn find(&self, key: &K) -> Option<Arc<T>> {
        self.entries.get(key)?.upgrade()
    }

    /// What is held under this key if it is the same, as when two decode it at once, and else `new`, from now on.
    fn keep(&mut self, key: K, new: Arc<T>, is_same: impl Fn(&T) -> bool) -> Arc<T> {
        if let Some(known) = self.find(&key).filter(|known| is_same(known)) {
            return known;
        }
        if self.entries.len() >= self.limit {
            self.entries.retain(|_, held| held.strong_count() > 0);
            // An entry keeps the room of what it leads to, if not what that holds: a quarter of them may lead nowhere.
            self.limit = (self.entries.len() / 4 * 5).max(Self::SMALL);
        }
        self.entries.insert(key, Arc::downgrade(&new));
        new
    }
}

fn lock<T>(table: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, node: &str, token: &str) -> Value {
        let mounts = json!([
            { "name": format!("kube-api-access-{token}"), "readOnly": true, "mountPath": "/var/run/secrets" },
            { "name": "data", "mountPath": "/kube-api-access-abcde" },
        ]);
        json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": "7",
                "labels": { "app": "web" },
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r" }],
            },
            "spec": {
                "volumes": [
                    { "name": "data", "secret": { "secretName": "kube-api-access-aaaaa" } },
                    { "name": format!("kube-api-access-{token}"), "projected": { "sources": [] } },
                ],
                "initContainers": [{ "name": "i", "image": "i", "volumeMounts": mounts }],
                "containers": [{ "name": "c", "image": "i \"\\", "volumeMounts": mounts }, { "name": "d" }],
                "ephemeralContainers": [{ "name": "e", "volumeMounts": mounts }],
                "nodeName": node,
                "serviceAccountName": "default",
            },
            "status": { "phase": "Running", "podIPs": [{ "ip": "10.0.0.1" }] },
        })
    }

    fn read(object: &Value) -> Pod {
        let text = object.to_string();
        let pod: Pod = serde_json::from_str(&text).unwrap();
        let complete: CompletePod = serde_json::from_str(&text).unwrap();
        assert_eq!(pod.complete(), complete, "{text}");
        assert_eq!(serde_json::from_value::<Pod>(object.clone()).unwrap(), pod, "{text}");
        let pretty: Pod = serde_json::from_str(&serde_json::to_string_pretty(object).unwrap()).unwrap();
        assert_eq!(pretty.complete(), complete, "{text}");
        pod
    }

    fn template(pod: &Pod) -> &Arc<PodSpec> {
        &pod.spec.as_ref().unwrap().template
    }

    #[test]
    fn pods_of_one_template_share_their_spec() {
        let first = read(&pod("a", "n1", "abcde"));
        for other in [pod("b", "n1", "abcde"), pod("b", "n2", "x7k2p"), pod("c", "", "00000")] {
            assert!(Arc::ptr_eq(template(&first), template(&read(&other))), "{other}");
        }
        let mut unbound = pod("d", "", "abcde");
        unbound["spec"].as_object_mut().unwrap().remove("nodeName");
        let unbound = read(&unbound);
        assert!(Arc::ptr_eq(template(&first), template(&unbound)));
        assert_eq!((&unbound.spec.as_ref().unwrap().node_name, &template(&unbound).node_name), (&None, &None));
        assert_eq!(first.spec.as_ref().unwrap().node_name.as_deref(), Some("n1"));
        let mut other = pod("e", "n1", "abcde");
        other["spec"]["containers"][0]["image"] = json!("j");
        assert!(!Arc::ptr_eq(template(&first), template(&read(&other))));
    }

    #[test]
    fn a_version_of_a_pod_is_decoded_once() {
        let text = pod("once", "n1", "abcde");
        let first = read(&text);
        assert!(Arc::ptr_eq(&first.0, &read(&text).0));
        let mut next = text.clone();
        next["metadata"]["resourceVersion"] = json!("8");
        assert!(!Arc::ptr_eq(&first.0, &read(&next).0));
        // A cluster that was restored and went on differently has the same versions of other objects.
        let mut restored = text.clone();
        restored["status"]["phase"] = json!("Failed");
        assert_eq!(read(&restored).status.as_ref().unwrap().phase.as_deref(), Some("Failed"));
        let mut changed = first.clone();
        changed.metadata.name = Some("other".into());
        assert_eq!(first.metadata.name.as_deref(), Some("once"));
        let mut unversioned = text;
        unversioned["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        assert!(!Arc::ptr_eq(&read(&unversioned).0, &read(&unversioned).0));
    }

    #[test]
    fn nothing_is_lost_whatever_a_pod_looks_like() {
        for object in [
            json!({}),
            json!({ "metadata": null, "spec": null, "status": null }),
            json!({ "spec": { "containers": [] } }),
            json!({ "spec": { "containers": [], "nodeName": null } }),
            json!({ "spec": { "nodeName": "n", "containers": [] } }),
            json!({ "spec": { "containers": [{ "name": "a" }], "hostname": "h", "nodeName": "n\u{e4}\"" } }),
            // Names that only look like those of token volumes.
            json!({ "spec": { "containers": [], "volumes": [{ "name": "kube-api-access-abcde", "emptyDir": {} }] } }),
            json!({ "spec": { "containers": [], "volumes": [{ "name": "kube-api-access-", "projected": {} }] } }),
            json!({ "spec": { "containers": [], "volumes": [{ "name": "kube-api-access-abc/e", "projected": {} }] } }),
        ] {
            read(&object);
        }
        let first =
            json!({ "spec": { "nodeName": "n", "volumes": [] } }).to_string().replace("[]", "[],\"containers\":[]");
        let first: Pod = serde_json::from_str(&first).unwrap();
        assert_eq!(first.spec.as_ref().unwrap().node_name.as_deref(), Some("n"));
    }

    #[test]
    fn what_is_no_pod_is_refused() {
        for text in
            ["[]", "7", "{", "{\"spec\":7}", "{\"spec\":{\"nodeName\":7}}", "{\"metadata\":[7]}", "{\"status\":\"\"}"]
        {
            assert!(serde_json::from_str::<Pod>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_nobody_holds_is_forgotten() {
        let mut table = Table::default();
        let held: Vec<_> = (0..10).map(|at| table.keep(at, Arc::new(at), |_| true)).collect();
        for at in 10..10_000 {
            table.keep(at, Arc::new(at), |_| true);
        }
        assert!(table.entries.len() <= Table::<u64, u64>::SMALL);
        assert!(held.iter().all(|held| table.find(held).is_some_and(|found| Arc::ptr_eq(&found, held))));
        assert!(Arc::ptr_eq(&table.keep(3, Arc::new(3), |_| true), &held[3]));
        assert!(!Arc::ptr_eq(&table.keep(3, Arc::new(3), |_| false), &held[3]));
    }
}
