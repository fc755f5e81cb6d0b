//! Kinds that are custom resources and that controllers here bring along: made when they are wanted, followed once they are
//! served.

use api::meta::Meta as _;
use client::{Client, Informer};
use futures_util::future::join_all;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use crate::Error;

/// Definitions with this label are ours; others bring their own.
pub(super) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "cox");

pub(super) fn is_ours(definition: &CustomResourceDefinition) -> bool {
    let labels = definition.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED_BY.0)).is_some_and(|by| by == MANAGED_BY.1)
}

pub(super) fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    conditions.any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Makes those that are not there; what somebody else has made stays as it is.
pub(super) async fn install(
    client: &Client,
    known: &Informer<CustomResourceDefinition>,
    wanted: impl IntoIterator<Item = Value>,
) -> Result<(), Error> {
    let make = async |definition: Value| {
        let definition: CustomResourceDefinition =
            api::codec::from_value(&definition).map_err(|error| Error::object(error.to_string()))?;
        if known.get(definition.metadata.name()).is_some() {
            return Ok(());
        }
        match client.all::<CustomResourceDefinition>().create(&definition).await {
            Err(error) if !error.is_already_exists() => Err(Error::from(error)),
            _ => Ok(()),
        }
    };
    join_all(wanted.into_iter().map(make)).await.into_iter().collect()
}
