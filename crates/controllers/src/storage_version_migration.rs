//! StorageVersionMigration: writes every object of a resource once more, unchanged, so that it is stored in the version and with the
//! key that new objects are.
//!
//! One migration of a resource runs at a time, the oldest first. Its steps are in its status: Running, then the resource version up
//! to which objects are old, then Succeeded or Failed. Whatever was written since has a later version, so a migration that
//! is taken up again does only what is left.

use std::sync::Arc;
use std::time::Duration;

use api::meta::Meta as _;
use client::{ApiResource, Client, Clock, Informer, ListParams, Patch, object_key};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::storagemigration::v1beta1::{StorageVersionMigration, StorageVersionMigrationStatus};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::json;

use crate::Error;
use crate::controller::{Context, Outcome, Reconcile, Requeue};

const MANAGER: &str = "storage-version-migrator-controller";
/// Whose fields of a definition these are, as upstream's.
const RUNNER: &str = "migration-runner-controller";
const NEEDED_VERBS: [&str; 3] = ["update", "patch", "list"];
const PAGE: u32 = 500;
/// A resource that was defined just now may not be served yet.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(60);
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(2);

struct Controller {
    clock: Clock,
    client: Client,
    migrations: Informer<StorageVersionMigration>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let migrations = context.informer::<StorageVersionMigration>();
    let (all, queue) = (migrations.shared(), context.queue.clone());
    // Others of the same resource wait for their turn.
    let migrations = migrations.wakes(move |event| {
        let resource = resource(event.object());
        queue.add(object_key(&**event.object()));
        for other in all.list().iter().filter(|other| !is_finished(other) && self::resource(other) == resource) {
            queue.add(object_key(&**other));
        }
    });
    Arc::new(Controller { clock: context.config.clock.clone(), client: context.client.clone(), migrations })
}

fn holds(migration: &StorageVersionMigration, kind: &str) -> bool {
    let conditions = migration.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == kind && one.status == "True")
}

fn is_finished(migration: &StorageVersionMigration) -> bool {
    holds(migration, "Succeeded") || holds(migration, "Failed")
}

/// Group and resource.
fn resource(migration: &StorageVersionMigration) -> (&str, &str) {
    migration.spec.as_ref().map_or(("", ""), |spec| (&spec.resource.group, &spec.resource.resource))
}

/// What a migration needs next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Another one of its resource comes first, or it is over.
    Nothing,
    Begin,
    FindVersion,
    Migrate(u64),
    /// It is over, and still says that it runs.
    Close,
    Fail(String),
}

fn next_step(migration: &StorageVersionMigration, all: &[Arc<StorageVersionMigration>]) -> Step {
    let is_running = holds(migration, "Running");
    if is_finished(migration) {
        return if is_running { Step::Close } else { Step::Nothing };
    }
    if !is_running {
        let age = |one: &StorageVersionMigration| {
            (one.metadata.creation_timestamp.as_ref().map(|at| at.0), one.metadata.name.clone())
        };
        let others = all
            .iter()
            .filter(|other| other.metadata.uid != migration.metadata.uid && resource(other) == resource(migration));
        let comes_first = |other: &Arc<StorageVersionMigration>| {
            holds(other, "Running") || !is_finished(other) && age(other) < age(migration)
        };
        return if others.into_iter().any(comes_first) { Step::Nothing } else { Step::Begin };
    }
    match migration.status.as_ref().and_then(|status| status.resource_version.as_deref()).unwrap_or_default() {
        "" => Step::FindVersion,
        version => match version.parse() {
            Ok(version) => Step::Migrate(version),
            Err(_) => Step::Fail(format!("resource version is not well formed: {version}")),
        },
    }
}

/// The status with one more condition, or with another value of one.
fn with_condition(
    migration: &StorageVersionMigration,
    now: Timestamp,
    (kind, status): (&str, bool),
    (reason, message): (&str, &str),
) -> StorageVersionMigration {
    let mut changed = migration.clone();
    let conditions = changed.status.get_or_insert_default().conditions.get_or_insert_default();
    conditions.retain(|one| one.type_ != kind);
    conditions.push(Condition {
        type_: kind.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: migration.metadata.generation,
    });
    changed
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(migration) = self.migrations.get(key) else { return Ok(Requeue::Never) };
            let step = next_step(&migration, &self.migrations.list());
            match step {
                Step::Nothing => Ok(Requeue::Never),
                Step::Begin => self.begin(&migration).await,
                Step::FindVersion => self.find_version(&migration).await,
                Step::Migrate(version) => self.migrate(&migration, version).await,
                Step::Close => self.close(&migration).await,
                Step::Fail(why) => self.fail(&migration, &why).await,
            }
        })
    }
}

impl Controller {
    async fn write(&self, changed: &StorageVersionMigration) -> Outcome {
        // The next event brings it back.
        self.client.all::<StorageVersionMigration>().update_status(changed).await?;
        Ok(Requeue::Never)
    }

    async fn begin(&self, migration: &StorageVersionMigration) -> Outcome {
        let name = migration.metadata.name();
        self.mark_definition(migration, ("True", "MigrationRunning", &format!("Migration {name} is running")), false)
            .await?;
        let why = ("MigrationRunning", "The migration is running");
        self.write(&with_condition(migration, self.clock.now(), ("Running", true), why)).await
    }

    async fn close(&self, migration: &StorageVersionMigration) -> Outcome {
        let outcome = match holds(migration, "Succeeded") {
            true => ("False", "MigrationSucceeded", "The migration has succeeded"),
            false => ("False", "MigrationFailed", "The migration has failed"),
        };
        self.mark_definition(migration, outcome, true).await?;
        let why = ("MigrationCompleted", "Migration completed");
        self.write(&with_condition(migration, self.clock.now(), ("Running", false), why)).await
    }

    async fn fail(&self, migration: &StorageVersionMigration, why: &str) -> Outcome {
        let message = format!("migration encountered unhandled error: {why}");
        let why = ("StorageVersionMigrationFailed", message.as_str());
        self.write(&with_condition(migration, self.clock.now(), ("Failed", true), why)).await
    }

    /// Says on the definition of a custom resource that its objects are migrated. When that is over and the definition is
    /// still the same, only the present version is stored.
    async fn mark_definition(
        &self,
        migration: &StorageVersionMigration,
        (status, reason, message): (&str, &str, &str),
        is_over: bool,
    ) -> Result<(), Error> {
        let (group, plural) = resource(migration);
        let (definitions, name) = (self.client.all::<CustomResourceDefinition>(), format!("{plural}.{group}"));
        if group.is_empty() {
            return Ok(());
        }
        let Some(found) = definitions.get_opt(&name).await? else { return Ok(()) };
        let (conditions, generation) =
            (found.status.as_ref().and_then(|status| status.conditions.as_ref()), found.metadata.generation);
        let began = conditions.into_iter().flatten().find(|one| one.type_ == "StorageMigrating");
        let is_same = is_over && began.is_some_and(|one| one.observed_generation == generation);
        let message = match (is_over && reason == "MigrationSucceeded", is_same) {
            (true, true) => format!("{message} and the stored versions have been updated"),
            (true, false) => {
                format!("{message} but the stored versions have not been updated due to a generation mismatch")
            }
            _ => message.to_owned(),
        };
        let mut wanted = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": name, "resourceVersion": found.metadata.resource_version},
            "status": {"conditions": [{
                "type": "StorageMigrating", "status": status, "reason": reason, "message": message,
                "lastTransitionTime": Time(self.clock.now()), "observedGeneration": generation,
            }]},
        });
        let stored = found.spec.versions.iter().find(|version| version.storage).map(|version| version.name.clone());
        // A field that this manager once applied and leaves out would be removed.
        if let Some(stored) = found.status.as_ref().and_then(|status| status.stored_versions.as_ref()) {
            wanted["status"]["storedVersions"] = json!(stored);
        }
        if is_same
            && reason == "MigrationSucceeded"
            && let Some(stored) = stored
        {
            wanted["status"]["storedVersions"] = json!([stored]);
        }
        definitions.patch_status(&name, &Patch::apply(RUNNER, wanted).force()).await?;
        Ok(())
    }

    /// The resource in its preferred version, if it is served.
    async fn served(&self, migration: &StorageVersionMigration) -> Result<Option<ApiResource>, Error> {
        let (group, plural) = resource(migration);
        let (resources, failed) = self.client.discover().await?;
        let found = resources.into_iter().find(|one| one.gvr.group == group && one.gvr.resource == plural);
        let root = if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/") };
        match (found, failed.into_iter().find(|(path, _)| path.starts_with(&root))) {
            (None, Some((_, error))) => Err(error.into()),
            (found, _) => Ok(found),
        }
    }

    async fn find_version(&self, migration: &StorageVersionMigration) -> Outcome {
        let Some(served) = self.served(migration).await? else {
            let made = migration.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0);
            let age = Duration::try_from(self.clock.now().duration_since(made)).unwrap_or_default();
            if age < DISCOVERY_TIMEOUT {
                return Ok(Requeue::After(DISCOVERY_INTERVAL));
            }
            return self.fail(migration, "resource does not exist in discovery").await;
        };
        if let Some(missing) = NEEDED_VERBS.iter().find(|verb| !served.supports(verb)) {
            let why = format!("resource {:?} does not support {missing}: it cannot be migrated", served.gvr.resource);
            return self.fail(migration, &why).await;
        }
        let params = ListParams { limit: Some(1), ..ListParams::default() };
        let list = self.client.metadata(&served.gvr, None).list(&params).await?;
        let mut changed = migration.clone();
        let status: &mut StorageVersionMigrationStatus = changed.status.get_or_insert_default();
        status.resource_version = Some(list.metadata.resource_version.unwrap_or_default());
        self.write(&changed).await
    }

    async fn migrate(&self, migration: &StorageVersionMigration, version: u64) -> Outcome {
        let Some(served) = self.served(migration).await? else {
            return self.fail(migration, "resource does not exist in discovery").await;
        };
        // As one list, for which there is an end and room: an aggregated API server could go on with pages for ever.
        let objects = self.client.owned(&served.gvr, None).list_all(&ListParams::default(), PAGE).await?;
        let group_version = match &*served.gvr.group {
            "" => served.gvr.version.to_string(),
            group => format!("{group}/{}", served.gvr.version),
        };
        for object in &objects.items {
            let metadata = &object.metadata;
            let current = metadata.resource_version.as_deref().unwrap_or_default();
            if current.parse::<u64>().is_ok_and(|current| current > version) {
                continue;
            }
            // Uid and version: an object that was written, deleted or made anew since is a conflict, and needs nothing.
            let unchanged = json!({
                "apiVersion": group_version,
                "kind": served.kind,
                "metadata": {"name": metadata.name, "uid": metadata.uid, "resourceVersion": metadata.resource_version},
            });
            let api = self.client.dynamic(&served.gvr, metadata.namespace.as_deref());
            match api.patch(metadata.name(), &Patch::apply(MANAGER, unchanged)).await {
                Ok(_) => {}
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(error) if is_final(&error) => return self.fail(migration, &error.to_string()).await,
                Err(error) => return Err(error.into()),
            }
        }
        let why = ("StorageVersionMigrationSucceeded", "");
        self.write(&with_condition(migration, self.clock.now(), ("Succeeded", true), why)).await
    }
}

/// Whether trying again would be in vain (`isRetriableError`, v1.36, turned around).
fn is_final(error: &client::Error) -> bool {
    error.code().is_some_and(|code| !matches!(code, 429 | 500..))
}

#[cfg(test)]
mod tests {
    use client::Body;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};

    use super::*;

    fn migration(name: &str, second: i64, conditions: &[(&str, bool)], version: &str) -> StorageVersionMigration {
        let mut one = StorageVersionMigration::default();
        one.metadata.name = Some(name.into());
        one.metadata.uid = Some(name.into());
        one.metadata.creation_timestamp = Some(Time(Timestamp::from_second(second).unwrap()));
        one.status = Some(StorageVersionMigrationStatus { conditions: None, resource_version: Some(version.into()) });
        for (kind, status) in conditions {
            one = with_condition(&one, Timestamp::UNIX_EPOCH, (kind, *status), ("R", ""));
        }
        one
    }

    #[test]
    fn migrations_of_a_resource_take_turns() {
        let waiting = migration("b", 2, &[], "");
        let older = migration("a", 1, &[], "");
        let running = migration("z", 9, &[("Running", true)], "");
        let done = migration("d", 0, &[("Running", false), ("Succeeded", true)], "5");
        for (one, others, expected) in [
            (&waiting, vec![&waiting], Step::Begin),
            (&waiting, vec![&waiting, &older], Step::Nothing),
            (&older, vec![&waiting, &older], Step::Begin),
            (&older, vec![&older, &running], Step::Nothing),
            (&waiting, vec![&waiting, &done], Step::Begin),
            (&running, vec![&older, &running], Step::FindVersion),
            (&migration("r", 1, &[("Running", true)], "7"), vec![], Step::Migrate(7)),
            (&migration("e", 1, &[("Running", true), ("Failed", true)], "7"), vec![], Step::Close),
            (&done, vec![], Step::Nothing),
        ] {
            let all: Vec<_> = others.into_iter().cloned().map(Arc::new).collect();
            assert_eq!(next_step(one, &all), expected, "{:?}", one.metadata.name);
        }
        let odd = next_step(&migration("o", 1, &[("Running", true)], "x"), &[]);
        assert!(matches!(odd, Step::Fail(_)));
    }

    /// A server with one kind, whose list has one more page every second.
    async fn endless(path: String) -> Response<Body> {
        const GROUP: &str = "things.example.com";
        let body = match path.as_str() {
            "/apis" => {
                let version = json!({"groupVersion": format!("{GROUP}/v1"), "version": "v1"});
                json!({"groups": [{"name": GROUP, "versions": [version]}]})
            }
            "/api/v1" => json!({"groupVersion": "v1", "resources": []}),
            "/apis/things.example.com/v1" => {
                let mut things = json!({"name": "things", "singularName": "", "kind": "Thing"});
                (things["namespaced"], things["verbs"]) = (json!(true), json!([]));
                json!({"groupVersion": format!("{GROUP}/v1"), "resources": [things]})
            }
            _ => {
                tokio::time::sleep(Duration::from_secs(1)).await;
                json!({"metadata": {"continue": "more"}, "items": []})
            }
        };
        let body = Full::new(body.to_string().into()).map_err(|never| match never {}).boxed_unsync();
        Response::builder().header(api::AGGREGATED_HEADER, "true").body(body).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn security_pages_without_end_hold_up_no_other_migration() {
        let handler: client::Handler =
            Arc::new(|request: Request<bytes::Bytes>| Box::pin(endless(request.uri().path().to_owned())));
        let client = Client::in_process(handler, api::UserInfo::default());
        let migrations = Informer::new(client.all(), ListParams::default());
        let controller = Controller { clock: Clock::default(), client, migrations };
        let mut one = migration("m", 1, &[("Running", true)], "7");
        let spec = json!({"resource": {"group": "things.example.com", "resource": "things"}});
        one.spec = Some(serde_json::from_value(spec).unwrap());
        let migrated = tokio::time::timeout(Duration::from_secs(3600), controller.migrate(&one, 7)).await;
        assert!(migrated.expect("an end").is_err());
    }
}
