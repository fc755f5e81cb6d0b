//! The FlowSchemas and PriorityLevelConfigurations that every cluster has, and what each FlowSchema says about its level.
//!
//! [`ensure`] makes them when the server starts; [`run`] puts them back when somebody deletes or changes what is not
//! theirs to change, tells FlowSchemas whether the level that they name exists, and has requests go by all of them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use api::time::rfc3339;
use futures_util::future::try_join_all;
use http::Method;
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use registry::flowcontrol::suggested::{AUTO_UPDATE, GROUP, LEVELS, SCHEMAS, Suggestion, levels, schemas};
use registry::unset::{items, or_empty};
use serde_json::{Value, json};

use crate::stamp::now;
use crate::state::State;
use crate::watch_cache::Unreadable;

const PRODUCER: &str = "api-priority-and-fairness-config-producer-v1";
const CONSUMER: &str = "api-priority-and-fairness-config-consumer-v1";
/// What could not be written is tried again after this long.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Brings the objects in line, and tells every FlowSchema about its level.
pub(crate) async fn ensure(state: &Arc<State>) -> anyhow::Result<()> {
    if state.registry.find(GROUP, "v1", SCHEMAS).is_none() {
        return Ok(());
    }
    for suggestions in [levels(), schemas()] {
        let writes = suggestions.iter().map(|suggestion| keep(state, suggestion));
        try_join_all(writes).await?;
    }
    write_status(state).await
}

/// Keeps them in line until the server stops.
pub(crate) async fn run(state: Arc<State>) {
    let (Some(schemas), Some(levels)) = (state.caches.get(SCHEMAS), state.caches.get(LEVELS)) else { return };
    let (mut schemas, mut levels) = (schemas.subscribe(), levels.subscribe());
    loop {
        schemas.mark_unchanged();
        levels.mark_unchanged();
        let outcome = match learn(&state) {
            Ok(()) => ensure(&state).await,
            Err(unreadable) => Err(unreadable.into()),
        };
        if let Err(error) = &outcome {
            tracing::warn!("flow control objects: {error:#}");
        }
        let again = tokio::time::sleep(RETRY_INTERVAL);
        tokio::select! {
            () = state.stop.cancelled() => return,
            changed = schemas.changed() => if changed.is_err() { return },
            changed = levels.changed() => if changed.is_err() { return },
            () = again, if outcome.is_err() => {}
        }
    }
}

/// Has requests go by the objects there are. If one of them cannot be read, by those that could be read last.
fn learn(state: &State) -> Result<(), Unreadable> {
    let (Some(schemas), Some(levels)) = (state.caches.get(SCHEMAS), state.caches.get(LEVELS)) else { return Ok(()) };
    let schemas: Vec<Arc<FlowSchema>> =
        schemas.snapshot().objects.values().map(|entry| entry.read()).collect::<Result<_, _>>()?;
    let levels: Vec<Arc<PriorityLevelConfiguration>> =
        levels.snapshot().objects.values().map(|entry| entry.read()).collect::<Result<_, _>>()?;
    state.flow_control.learn(&schemas, &levels);
    Ok(())
}

async fn keep(state: &Arc<State>, suggestion: &Suggestion) -> anyhow::Result<()> {
    let path = format!("/apis/{GROUP}/v1/{}", suggestion.plural);
    let name = suggestion.object["metadata"]["name"].as_str().unwrap_or_default();
    let found = state.caches.get(suggestion.plural).and_then(|cache| cache.get(name));
    let Some(found) = found else {
        let url = format!("{path}?fieldManager={PRODUCER}");
        return write(state, Method::POST, &url, &suggestion.object).await;
    };
    let found: Value = found.decode()?;
    match revised(&found, suggestion) {
        Some(object) => write(state, Method::PUT, &format!("{path}/{name}?fieldManager={PRODUCER}"), &object).await,
        None => Ok(()),
    }
}

/// The object as it should be; nothing if it is. What somebody keeps for themselves stays.
fn revised(found: &Value, wanted: &Suggestion) -> Option<Value> {
    let said = found["metadata"]["annotations"][AUTO_UPDATE].as_str().and_then(|text| text.parse::<bool>().ok());
    let is_ours = wanted.is_mandatory || said.unwrap_or(found["metadata"]["generation"] == 1);
    let mut spec = wanted.object["spec"].clone();
    if spec["type"] == "Exempt" && found["spec"]["type"] == "Exempt" {
        // How much an exempt level lends is for the people who run the cluster to say.
        spec["exempt"] = found["spec"]["exempt"].clone();
    }
    let differs = is_ours && found["spec"] != spec;
    if !differs && said == Some(is_ours) {
        return None;
    }
    let mut object = found.clone();
    if differs {
        object["spec"] = spec;
    }
    object["metadata"]["annotations"][AUTO_UPDATE] = is_ours.to_string().into();
    Some(object)
}

/// Tells every FlowSchema whether its level exists.
async fn write_status(state: &Arc<State>) -> anyhow::Result<()> {
    let (Some(schemas), Some(levels)) = (state.caches.get(SCHEMAS), state.caches.get(LEVELS)) else { return Ok(()) };
    let levels = levels.snapshot();
    let levels: HashSet<&str> = levels.objects.values().map(|entry| entry.name()).collect();
    let snapshot = schemas.snapshot();
    let writes = snapshot.objects.values().filter_map(|entry| {
        let schema = entry.read::<FlowSchema>().ok()?;
        let status = dangling(&schema, &levels)?;
        let name = or_empty(&schema.metadata.name);
        let url = format!("/apis/{GROUP}/v1/{SCHEMAS}/{name}/status?fieldManager={CONSUMER}");
        let mut object = json!(*schema);
        object["status"] = status;
        Some(async move { write(state, Method::PUT, &url, &object).await })
    });
    try_join_all(writes).await.map(drop)
}

/// The status a FlowSchema should have; nothing if it has it.
fn dangling(schema: &FlowSchema, levels: &HashSet<&str>) -> Option<Value> {
    let level = schema.spec.as_ref().map(|spec| spec.priority_level_configuration.name.as_str()).unwrap_or_default();
    let (status, reason, rest) = match levels.contains(level) {
        true => ("False", "Found", "and it exists"),
        false => ("True", "NotFound", "but there is no such object"),
    };
    let level = api::field::quote(level);
    let message = format!("This FlowSchema references the PriorityLevelConfiguration object named {level} {rest}");
    let conditions = schema.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default();
    let (old, others): (Vec<_>, Vec<_>) =
        conditions.iter().partition(|condition| condition.type_.as_deref() == Some("Dangling"));
    let is_said = old.iter().any(|old| {
        old.status.as_deref() == Some(status)
            && old.reason.as_deref() == Some(reason)
            && old.message.as_deref() == Some(&message)
    });
    if is_said {
        return None;
    }
    let mut conditions = json!(others);
    conditions.as_array_mut()?.push(json!({"type": "Dangling", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": rfc3339(now())}));
    Some(json!({"conditions": conditions}))
}

async fn write(state: &Arc<State>, method: Method, url: &str, object: &Value) -> anyhow::Result<()> {
    let (code, answer) = crate::loopback::send(state, method, url, object).await.with_context(|| url.to_owned())?;
    // Made, changed or deleted in between: the cache will say.
    anyhow::ensure!(code < 300 || code == 409 || code == 404, "{url}: {}", answer["message"]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_keep_for_themselves_stays() {
        let system = || levels().into_iter().find(|level| level.object["metadata"]["name"] == "system").unwrap();
        let wanted = system();
        let found = |annotation: Option<&str>, generation: i64, shares: i64| {
            let mut object = wanted.object.clone();
            object["metadata"]["generation"] = generation.into();
            object["spec"]["limited"]["nominalConcurrencyShares"] = shares.into();
            match annotation {
                Some(text) => object["metadata"]["annotations"][AUTO_UPDATE] = text.into(),
                None => object["metadata"]["annotations"] = json!({}),
            }
            object
        };
        // (annotation, generation, shares) -> annotation and shares afterwards, if anything is written.
        for (annotation, generation, shares, expected) in [
            (Some("true"), 1, 30, None),
            (Some("true"), 2, 7, Some(("true", 30))),
            (Some("false"), 2, 7, None),
            (None, 1, 7, Some(("true", 30))),
            (None, 2, 7, Some(("false", 7))),
            (Some("odd"), 2, 30, Some(("false", 30))),
        ] {
            let told = revised(&found(annotation, generation, shares), &wanted).map(|object| {
                let said = object["metadata"]["annotations"][AUTO_UPDATE].as_str().unwrap().to_owned();
                (said, object["spec"]["limited"]["nominalConcurrencyShares"].as_i64().unwrap())
            });
            assert_eq!(told, expected.map(|(said, shares)| (said.to_owned(), shares)), "{annotation:?} {generation}");
        }
        let mandatory = Suggestion { is_mandatory: true, ..system() };
        assert!(revised(&found(Some("false"), 2, 7), &mandatory).is_some());
    }

    #[test]
    fn a_schema_without_its_level_dangles() {
        let schema: FlowSchema = serde_json::from_value(schemas()[0].object.clone()).unwrap();
        let status = dangling(&schema, &HashSet::new()).unwrap();
        assert_eq!(status["conditions"][0]["status"], "True");
        let with = |status: Value| FlowSchema { status: serde_json::from_value(status).unwrap(), ..schema.clone() };
        assert_eq!(dangling(&with(status.clone()), &HashSet::new()), None);
        let found = dangling(&with(status), &HashSet::from(["exempt"])).unwrap();
        assert_eq!(found["conditions"][0]["reason"], "Found");
    }
}
