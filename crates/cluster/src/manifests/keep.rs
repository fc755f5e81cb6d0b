//! Applies the files when the cluster starts, when they change, and now and then.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use client::backoff::exponential;
use client::{ApiResource, Client, DeleteParams, EventRecorder, Patch};
use k8s_openapi::api::core::v1::ObjectReference;
use kubelet::FileWatch;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::directory;
use super::objects::{DEFAULT_NAMESPACE, Identity, Object};
use super::plan::plan;
use super::record::Record;
use crate::options::Options;
use crate::pki::private_dir;

/// Whose fields they are.
const MANAGER: &str = "cox-manifests";
/// An annotation of all objects from here: who applies nothing but a name manages nothing, and could not be recognized later.
const MARK: &str = "cox.dev/manifest";
/// What others changed is undone after this long at most.
const APPLY_INTERVAL: Duration = Duration::from_secs(60);
/// After a failure, at first and at most; a kind may be defined by another file.
const RETRY_INTERVALS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// Files often change together.
const BATCH_INTERVAL: Duration = Duration::from_millis(100);
/// Of an error, as it is told.
const MAX_MESSAGE: usize = 500;

/// Keeps the files of the directory applied until `stop`. A mistake in one of them is told and changes nothing.
pub(crate) async fn keep(client: Client, options: Options, node: String, stop: CancellationToken) -> Result<()> {
    let dir = options.manifests_dir();
    let events = EventRecorder::new(client.clone(), MANAGER, &node);
    let about = ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        uid: Some(node.clone()),
        name: Some(node),
        ..ObjectReference::default()
    };
    let watch = FileWatch::of_directories();
    let mut failures = 0;
    loop {
        watch.add_directory_of_files(&dir);
        let passed = async {
            let before = Record::load(&options)?;
            // One that had files and is gone is not an empty one: what it is on may not be mounted.
            if before.files.is_empty() && !dir.try_exists()? {
                private_dir(&dir)?;
                watch.add_directory_of_files(&dir);
            }
            let (after, is_busy) = pass(&client, &options, before.clone()).await?;
            anyhow::Ok((before, after, is_busy))
        };
        let is_done = match passed.await {
            // A full disk or a damaged record: the cluster is well without.
            Err(error) => {
                tracing::warn!("manifests: {error:#}");
                false
            }
            Ok((before, after, is_busy)) => {
                for news in news(&before, &after) {
                    match news {
                        News::Good(line) => tracing::info!("{line}"),
                        News::Bad(line) => {
                            tracing::warn!("{line}");
                            events.warning(&about, "ManifestFailed", line);
                        }
                    }
                }
                !is_busy && after.error.is_none() && after.files.values().all(|file| file.error.is_none())
            }
        };
        failures = if is_done { 0 } else { failures + 1 };
        let pause =
            if failures > 0 { exponential(RETRY_INTERVALS.0, RETRY_INTERVALS.1, failures) } else { APPLY_INTERVAL };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = watch.changed() => {
                failures = 0;
                tokio::time::sleep(BATCH_INTERVAL).await;
            }
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// A line about what is different.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Good(String),
    Bad(String),
}

/// Lines about what is different: what is well again, and what has gone wrong.
fn news(before: &Record, after: &Record) -> Vec<News> {
    let mut news = Vec::new();
    if after.error != before.error
        && let Some(error) = &after.error
    {
        news.push(News::Bad(format!("manifests: {error}")));
    }
    for (name, file) in &after.files {
        let old = before.files.get(name);
        match &file.error {
            Some(error) if old.and_then(|old| old.error.as_ref()) != Some(error) => {
                news.push(News::Bad(format!("manifest {name}: {error}")));
            }
            None if old != Some(file) => {
                news.push(News::Good(format!("manifest {name}: {} objects are applied", file.objects.len())));
            }
            _ => {}
        }
    }
    let gone = before.files.keys().filter(|name| !after.files.contains_key(*name));
    news.extend(gone.map(|name| News::Good(format!("manifest {name} is gone, and what it had"))));
    news
}

/// Brings the cluster in line with the files once. What was written down is returned, and whether to look again soon.
async fn pass(client: &Client, options: &Options, mut record: Record) -> Result<(Record, bool)> {
    let dir = options.manifests_dir();
    let found = tokio::task::spawn_blocking(move || directory::read(&dir)).await?;
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            record.error = Some(short(format!("{error:#}")));
            record.save(options)?;
            return Ok((record, false));
        }
    };
    let planned = plan(found, &record);
    let new = Record { error: None, files: planned.files };
    if new != record {
        new.save(options)?;
    }
    let mut record = new;
    let before_work = record.clone();
    let mut kinds = Kinds { client, known: HashMap::new() };
    for (name, objects) in &planned.apply {
        let mut failed = None;
        for object in objects {
            if let Err(error) = kinds.apply(object).await {
                // All that can be applied is, and the first trouble is told.
                failed.get_or_insert_with(|| short(format!("{}: {error:#}", object.identity)));
            }
        }
        record.files.entry(name.clone()).or_default().error = failed;
    }
    for (name, identity) in &planned.prune {
        let file = record.files.entry(name.clone()).or_default();
        // What takes its place is not there yet.
        if file.error.is_some() && planned.apply.contains_key(name) {
            continue;
        }
        match kinds.remove(identity).await {
            Ok(()) => file.objects.retain(|old| old != identity),
            Err(error) => file.error = Some(short(format!("removing {identity}: {error:#}"))),
        }
    }
    // Moved to another file, in another version, or simply in another order.
    for (name, objects) in &planned.apply {
        let file = record.files.entry(name.clone()).or_default();
        if file.error.is_none() {
            // What was removed is not among them any more; what could not be, or not yet, is remembered.
            let is_wanted = |old: &Identity| planned.apply.values().flatten().any(|object| object.identity.is(old));
            let left: Vec<Identity> = file.objects.iter().filter(|old| !is_wanted(old)).cloned().collect();
            file.objects = objects.iter().map(|object| object.identity.clone()).chain(left).collect();
        }
    }
    record
        .files
        .retain(|name, file| planned.apply.contains_key(name) || file.error.is_some() || !file.objects.is_empty());
    if record != before_work {
        record.save(options)?;
    }
    Ok((record, planned.is_busy))
}

fn short(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        let end = message.floor_char_boundary(MAX_MESSAGE);
        message.truncate(end);
        message.push('…');
    }
    message.replace('\n', " ")
}

/// Kinds that were asked for in a pass.
struct Kinds<'a> {
    client: &'a Client,
    known: HashMap<(String, String), Option<ApiResource>>,
}

impl Kinds<'_> {
    async fn resource(&mut self, identity: &Identity) -> Result<Option<ApiResource>> {
        let key = (identity.api_version.clone(), identity.kind.clone());
        if let Some(Some(known)) = self.known.get(&key) {
            return Ok(Some(known.clone()));
        }
        // One that was not there may have been defined since.
        let found = self.client.resource_of(&identity.api_version, &identity.kind).await?;
        self.known.insert(key, found.clone());
        Ok(found)
    }

    async fn api(&mut self, identity: &Identity) -> Result<Option<client::DynamicApi>> {
        let Some(resource) = self.resource(identity).await? else { return Ok(None) };
        let namespace = match (resource.namespaced, identity.namespace.as_str()) {
            (true, "") => Some(DEFAULT_NAMESPACE),
            (true, namespace) => Some(namespace),
            (false, "") => None,
            (false, _) => return Err(anyhow!("objects of this kind are in no namespace")),
        };
        Ok(Some(self.client.dynamic(&resource.gvr, namespace)))
    }

    async fn apply(&mut self, object: &Object) -> Result<()> {
        let Identity { api_version, kind, name, .. } = &object.identity;
        let api = self.api(&object.identity).await?;
        let api = api.with_context(|| format!("no matches for kind {kind:?} in version {api_version:?}"))?;
        let mut value = object.value.clone();
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            let annotations = metadata.entry("annotations").or_insert(Value::Null);
            if annotations.is_null() {
                *annotations = serde_json::json!({});
            }
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.insert(MARK.to_owned(), "true".into());
            }
        }
        let mut patch = Patch::apply(MANAGER, &value).force();
        patch.params.field_validation = Some("Strict".to_owned());
        api.patch(name, &patch).await?;
        Ok(())
    }

    /// Deletes an object that was applied from here; one that somebody else has made since stays.
    async fn remove(&mut self, identity: &Identity) -> Result<()> {
        let Some(api) = self.api(identity).await? else { return Ok(()) };
        let Some(found) = api.get_opt(&identity.name).await? else { return Ok(()) };
        let managers = found.pointer("/metadata/managedFields").and_then(Value::as_array);
        if !managers.into_iter().flatten().any(|entry| entry["manager"] == MANAGER) {
            return Ok(());
        }
        let uid = found.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        match api.delete(&identity.name, &DeleteParams::background().with_uid(uid)).await {
            Err(error) if error.is_not_found() => Ok(()),
            done => Ok(done?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::Instant;

    use k8s_openapi::api::core::v1::{ConfigMap, Event};

    struct Setting {
        client: Client,
        options: Options,
        _dir: tempfile::TempDir,
    }

    async fn setting() -> Setting {
        let dir = tempfile::tempdir().unwrap();
        let client = crate::test_server::start(dir.path()).await;
        let data_dir = dir.path().join("data");
        private_dir(&data_dir.join("manifests")).unwrap();
        let options = Options { data_dir, run_dir: dir.path().join("run"), name: "t".into() };
        Setting { client, options, _dir: dir }
    }

    fn put(options: &Options, name: &str, text: &str) {
        // As an editor does it: whole, and old enough where the file system has no leases.
        let path = options.manifests_dir().join(name);
        let temporary = options.manifests_dir().join(".new");
        std::fs::write(&temporary, text).unwrap();
        std::fs::set_permissions(&temporary, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let file = std::fs::File::options().write(true).open(&temporary).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(10)).unwrap();
        drop(file);
        std::fs::rename(&temporary, &path).unwrap();
    }

    fn map(name: &str, value: &str) -> String {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{key: {value}}}\n---\n")
    }

    async fn until<T>(what: &str, probe: impl AsyncFn() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(value) = probe().await {
                return value;
            }
            assert!(Instant::now() < deadline, "no sign of {what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn files_are_applied_and_kept() {
        let Setting { client, options, _dir } = setting().await;
        put(&options, "a.yaml", &(map("one", "first") + &map("two", "first")));
        let stop = CancellationToken::new();
        let kept = tokio::spawn(keep(client.clone(), options.clone(), "n1".into(), stop.clone()));
        let maps = client.namespaced::<ConfigMap>("default");
        let value = async |name: &str| {
            let found = maps.get_opt(name).await.unwrap()?;
            found.data.unwrap_or_default().get("key").cloned()
        };
        let is = |name: &'static str, expected: Option<&'static str>| {
            let value = &value;
            async move {
                until(&format!("{name} = {expected:?}"), async || {
                    (value(name).await.as_deref() == expected).then_some(())
                })
                .await;
            }
        };
        is("two", Some("first")).await;

        // A change is noticed, what left the file goes, and what others made of the same name stays.
        put(&options, "a.yaml", &map("one", "second"));
        is("one", Some("second")).await;
        is("two", None).await;

        // The default namespace by name is the same object; one that has nothing but a name goes as well.
        let bare = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bare}\n---\n";
        let named = map("one", "third").replace("{name: one}", "{name: one, namespace: default}");
        put(&options, "a.yaml", &(named.clone() + bare));
        let is_there = async |name: &str| maps.get_opt(name).await.unwrap().is_some();
        until("an object that has a name alone", async || is_there("bare").await.then_some(())).await;
        let uid = async || maps.get_opt("one").await.unwrap().unwrap().metadata.uid;
        let before = uid().await;
        put(&options, "a.yaml", &named);
        until("its end", async || (!is_there("bare").await).then_some(())).await;
        assert_eq!(uid().await, before);
        put(&options, "a.yaml", &map("one", "second"));
        is("one", Some("second")).await;
        assert_eq!(uid().await, before);

        // A mistake is told and changes nothing.
        put(&options, "a.yaml", &(map("one", "second") + &map("late", "x")));
        is("late", Some("x")).await;
        put(&options, "b.yaml", &(map("three", "x") + "spec: ["));
        put(&options, "c.yaml", "apiVersion: example.com/v1\nkind: Later\nmetadata: {name: l}\n");
        let told = until("the errors", async || {
            let lines = Record::load(&options).unwrap().lines();
            (lines.len() == 3).then_some(lines)
        })
        .await;
        assert!(told[1].starts_with("b.yaml: ") && told[1].contains("yaml"), "{told:?}");
        assert!(told[2].contains("c.yaml: later/l: no matches for kind \"Later\""), "{told:?}");
        let events = client.namespaced::<Event>("default");
        until("an event", async || {
            let all = events.list(&Default::default()).await.unwrap().items;
            all.into_iter().find(|event| event.reason.as_deref() == Some("ManifestFailed"))
        })
        .await;
        assert_eq!(value("three").await, None);
        // What leaves a file meanwhile is remembered and goes when all files can be read.
        put(&options, "a.yaml", &map("one", "third"));
        is("one", Some("third")).await;
        assert_eq!(value("late").await.as_deref(), Some("x"));
        put(&options, "a.yaml", &map("one", "second"));
        std::fs::remove_file(options.manifests_dir().join("b.yaml")).unwrap();
        std::fs::remove_file(options.manifests_dir().join("c.yaml")).unwrap();
        is("one", Some("second")).await;
        is("late", None).await;
        until("all is well", async || (Record::load(&options).unwrap().lines().len() == 1).then_some(())).await;

        // While nobody looks, a file goes, and somebody has taken one of its objects for himself.
        put(&options, "d.yaml", &(map("mine", "x") + &map("theirs", "x")));
        is("theirs", Some("x")).await;
        until("the record", async || {
            (Record::load(&options).unwrap().lines()[0] == "2 files, 3 objects").then_some(())
        })
        .await;
        stop.cancel();
        kept.await.unwrap().unwrap();
        std::fs::remove_file(options.manifests_dir().join("d.yaml")).unwrap();
        maps.delete("theirs", &DeleteParams::background()).await.unwrap();
        let metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            name: Some("theirs".into()),
            ..Default::default()
        };
        maps.create(&ConfigMap { metadata, data: Some([("key".into(), "own".into())].into()), ..Default::default() })
            .await
            .unwrap();
        let (record, is_busy) = pass(&client, &options, Record::load(&options).unwrap()).await.unwrap();
        assert!(!is_busy);
        assert_eq!(record.lines(), ["1 files, 1 objects"]);
        assert_eq!((value("mine").await, value("theirs").await.as_deref()), (None, Some("own")));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_directory_that_is_gone_takes_nothing_with_it() {
        let Setting { client, options, _dir } = setting().await;
        put(&options, "a.yaml", &map("one", "first"));
        let stop = CancellationToken::new();
        let kept = tokio::spawn(keep(client.clone(), options.clone(), "n1".into(), stop.clone()));
        let maps = client.namespaced::<ConfigMap>("default");
        let is_there = async |name: &str| maps.get_opt(name).await.unwrap().is_some();
        let has_error = || Record::load(&options).unwrap().error.is_some();
        until("the object", async || is_there("one").await.then_some(())).await;
        let (dir, aside) = (options.manifests_dir(), options.data_dir.join("aside"));
        std::fs::rename(&dir, &aside).unwrap();
        std::fs::write(aside.join("change.yaml"), "").unwrap();
        until("a word about it", async || has_error().then_some(())).await;
        assert!(is_there("one").await);
        std::fs::rename(&aside, &dir).unwrap();
        put(&options, "b.yaml", &map("two", "x"));
        until("another object", async || is_there("two").await.then_some(())).await;
        assert!(is_there("one").await && !has_error());
        stop.cancel();
        kept.await.unwrap().unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn security_a_directory_that_others_can_write_changes_nothing() {
        let Setting { client, options, _dir } = setting().await;
        put(&options, "a.yaml", &map("one", "first"));
        let (record, _) = pass(&client, &options, Record::default()).await.unwrap();
        assert_eq!(record.lines(), ["1 files, 1 objects"]);
        let mode = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(options.manifests_dir(), mode).unwrap();
        };
        mode(0o777);
        std::fs::remove_file(options.manifests_dir().join("a.yaml")).unwrap();
        put(&options, "evil.yaml", &map("evil", "x"));
        let (record, _) = pass(&client, &options, record).await.unwrap();
        assert!(record.lines()[1].contains("can be written by other users"), "{:?}", record.lines());
        let maps = client.namespaced::<ConfigMap>("default");
        assert!(maps.get_opt("evil").await.unwrap().is_none());
        assert!(maps.get_opt("one").await.unwrap().is_some(), "a failure is no absence");
        mode(0o700);
        std::fs::remove_file(options.manifests_dir().join("evil.yaml")).unwrap();
        let (record, _) = pass(&client, &options, record).await.unwrap();
        assert_eq!(record.lines(), ["0 files, 0 objects"]);
        assert!(maps.get_opt("one").await.unwrap().is_none());
        assert!(!Path::new(&options.manifests_dir().join("a.yaml")).exists());
    }
}
