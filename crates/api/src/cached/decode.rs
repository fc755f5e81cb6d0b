//! Reading a pod: what it shares is cut out of its text and looked up by a hash; only what nobody has yet is decoded.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex};

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStatus as CompleteContainerStatus, Pod as CompletePod, PodCondition, PodIP, PodSpec,
    PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use super::{Condition, ContainerStatus, Parts, Pod, Spec, State, Status, TOKEN_VOLUME};
use crate::read::{self, Error, Read, Reader};
use crate::scan;
use crate::shared::{Table, lock};

/// How many letters follow [`TOKEN_VOLUME`].
const RANDOM: usize = 5;

impl Read for Pod {
    fn read(from: &mut Reader<'_>) -> Result<Pod, Error> {
        // Also checks that the text is JSON: what scans it below relies on that.
        decode(from.raw()?.as_bytes())
    }
}

/// Pods by a hash of their text; the parts that pods share by two hashes.
static PODS: LazyLock<Mutex<Table<u64, Parts>>> = LazyLock::new(Mutex::default);
static TEMPLATES: Shared<PodSpec> = LazyLock::new(Mutex::default);
static STATUSES: Shared<PodStatus> = LazyLock::new(Mutex::default);
static CONDITIONS: Shared<PodCondition> = LazyLock::new(Mutex::default);
static CONTAINERS: Shared<CompleteContainerStatus> = LazyLock::new(Mutex::default);

type Shared<T> = LazyLock<Mutex<Table<[u64; 2], T>>>;

/// Nobody outside can find texts with the same hash.
static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);

fn decode(text: &[u8]) -> Result<Pod, Error> {
    if text.first() != Some(&b'{') {
        // The error that the type itself gives for what is no object.
        return read::from_slice::<CompletePod>(text).map(Pod::from);
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

fn parts(text: &[u8]) -> Result<Parts, Error> {
    let [metadata, spec, status] =
        [&["metadata"], &["spec"], &["status"]].map(|path| scan::find(text, path).map(|range| &text[range]));
    let mut metadata = part::<ObjectMeta>(metadata)?.unwrap_or_default();
    shrink(&mut metadata.owner_references);
    shrink(&mut metadata.finalizers);
    let spec = read_spec(spec)?;
    let status = read_status(status, spec.as_ref().and_then(|spec| spec.token_volume.as_deref()))?;
    Ok(Parts { metadata, spec, status })
}

fn part<T: Read>(text: Option<&[u8]>) -> Result<Option<T>, Error> {
    text.map_or(Ok(None), read::from_slice)
}

/// What others hold that was decoded from the same text; else it is decoded, and `finish`ed.
fn shared<T: Read>(table: &Shared<T>, text: &[u8], finish: impl FnOnce(&mut T)) -> Result<Arc<T>, Error> {
    let hash = [0, 1].map(|key: usize| KEYS[key].hash_one(text));
    let known = lock(table).find(&hash);
    if let Some(known) = known {
        return Ok(known);
    }
    let mut new: T = read::from_slice(text)?;
    finish(&mut new);
    Ok(lock(table).keep(hash, Arc::new(new), |_| true))
}

fn read_status(text: Option<&[u8]>, token_volume: Option<&str>) -> Result<Option<Status>, Error> {
    let Some(text) = text.filter(|text| text.first() == Some(&b'{')) else {
        return Ok(part::<PodStatus>(text)?.map(Status::from));
    };
    let own = ["conditions", "containerStatuses", "initContainerStatuses", "podIP", "podIPs", "startTime"];
    let (common, [conditions, containers, init_containers, pod_ip, pod_ips, start_time]) = without(text, own);
    let mut status = Status {
        common: shared(&STATUSES, &common, |status| {
            shrink(&mut status.host_ips);
            shrink(&mut status.ephemeral_container_statuses);
        })?,
        conditions: read_list(conditions, read_condition)?,
        container_statuses: read_list(containers, |text| read_container(text, token_volume))?,
        init_container_statuses: read_list(init_containers, |text| read_container(text, token_volume))?,
        pod_ip: part::<String>(pod_ip)?,
        pod_ips: part::<Vec<PodIP>>(pod_ips)?,
        start_time: part::<Time>(start_time)?,
    };
    shrink(&mut status.pod_ips);
    Ok(Some(status))
}

fn read_condition(text: &[u8]) -> Result<Condition, Error> {
    if text.first() != Some(&b'{') {
        return read::from_slice::<PodCondition>(text).map(Condition::from);
    }
    let (common, [time]) = without(text, ["lastTransitionTime"]);
    Ok(Condition { common: shared(&CONDITIONS, &common, |_| {})?, last_transition_time: part::<Time>(time)? })
}

fn read_container(text: &[u8], token_volume: Option<&str>) -> Result<ContainerStatus, Error> {
    if text.first() != Some(&b'{') {
        return read::from_slice::<CompleteContainerStatus>(text).map(ContainerStatus::from);
    }
    let (mut common, [id, state]) = without(text, ["containerID", "state"]);
    let random: Vec<_> = token_volume.into_iter().flat_map(|name| random_parts(&common, 0, name)).collect();
    if !random.is_empty() {
        common = cut(&common, random);
    }
    Ok(ContainerStatus {
        common: shared(&CONTAINERS, &common, |container| {
            shrink(&mut container.volume_mounts);
            shrink(&mut container.allocated_resources_status);
        })?,
        container_id: part::<String>(id)?,
        state: part::<ContainerState>(state)?.map(State::from),
    })
}

/// A list each of whose items is read by `read_item`.
fn read_list<T>(text: Option<&[u8]>, read_item: impl Fn(&[u8]) -> Result<T, Error>) -> Result<Option<Vec<T>>, Error> {
    let Some(text) = text.filter(|text| *text != b"null") else { return Ok(None) };
    if text.first() != Some(&b'[') {
        // The error that a list gives for what is none.
        serde_json::from_slice::<Vec<serde::de::IgnoredAny>>(text)?;
    }
    let mut list = scan::items(text, 0).map(|item| read_item(&text[item])).collect::<Result<Vec<_>, _>>()?;
    list.shrink_to_fit();
    Ok(Some(list))
}

/// The text of an object without these members, and what they are.
pub(super) fn without<'a, const N: usize>(object: &'a [u8], names: [&str; N]) -> (Vec<u8>, [Option<&'a [u8]>; N]) {
    let mut rest = Vec::with_capacity(object.len());
    let mut taken = [None; N];
    rest.push(b'{');
    for (key, value) in scan::members(object, 0) {
        let value = &object[value];
        if let Some(at) = names.iter().position(|name| name.as_bytes() == key) {
            taken[at] = Some(value);
            continue;
        }
        if rest.len() > 1 {
            rest.push(b',');
        }
        rest.push(b'"');
        rest.extend_from_slice(key);
        rest.extend_from_slice(b"\":");
        rest.extend_from_slice(value);
    }
    rest.push(b'}');
    (rest, taken)
}

/// Lists grow by doubling while they are read.
pub(super) fn shrink<T>(list: &mut Option<Vec<T>>) {
    list.iter_mut().for_each(Vec::shrink_to_fit);
}

fn read_spec(text: Option<&[u8]>) -> Result<Option<Spec>, Error> {
    let Some(text) = text.filter(|text| text.first() == Some(&b'{')) else {
        return Ok(part::<PodSpec>(text)?.map(|spec| Spec { template: Arc::new(spec), ..Spec::default() }));
    };
    let Own { template, node_name, token_volume } = own(text);
    let template = shared(&TEMPLATES, &template, |spec| {
        spec.containers.shrink_to_fit();
        shrink(&mut spec.init_containers);
        shrink(&mut spec.tolerations);
        shrink(&mut spec.volumes);
    })?;
    let node_name = node_name.map(|range| read::from_slice::<Option<String>>(&text[range])).transpose()?;
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
        cuts.push(random_part(place));
        for container in containers.iter().flat_map(|list| scan::items(spec, *list)) {
            cuts.extend(random_parts(spec, container.start, name));
        }
    }
    Own { template: cut(spec, cuts), node_name, token_volume }
}

/// The text without these parts of it.
fn cut(text: &[u8], mut parts: Vec<Range<usize>>) -> Vec<u8> {
    parts.sort_by_key(|part| part.start);
    let mut left = Vec::with_capacity(text.len());
    let mut from = 0;
    for part in parts {
        // Parts overlap where a field is repeated: each has the comma between.
        left.extend_from_slice(&text[from..part.start.max(from)]);
        from = from.max(part.end);
    }
    left.extend_from_slice(&text[from..]);
    left
}

/// The random letters of a token volume's name, which stands here with its quotes.
fn random_part(place: Range<usize>) -> Range<usize> {
    place.end - 1 - RANDOM..place.end - 1
}

/// Those in the mounts of a container, or of a container's status, that begins at `at`.
fn random_parts(text: &[u8], at: usize, token_volume: &str) -> impl Iterator<Item = Range<usize>> {
    let mounts = scan::members(text, at).find(|(key, _)| *key == b"volumeMounts").map(|(_, mounts)| mounts);
    let mounts = mounts.into_iter().flat_map(move |mounts| scan::items(text, mounts.start));
    mounts.filter_map(move |mount| {
        let (_, place) = scan::members(text, mount.start).find(|(key, _)| *key == b"name")?;
        (unquoted(&text[place.clone()]) == Some(token_volume)).then(|| random_part(place))
    })
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
