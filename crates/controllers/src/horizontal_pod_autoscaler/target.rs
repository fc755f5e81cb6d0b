//! What an autoscaler scales: any resource with a `scale`, found by its kind.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use client::{ApiResource, Client, Gvr};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use parking_lot::Mutex;

/// How long an answer of discovery is believed.
const FRESH: Duration = Duration::from_secs(30);

/// Resources by group, version and kind, as discovery says.
#[derive(Default)]
pub(super) struct Resources(Mutex<HashMap<(String, String), (Instant, ApiResource)>>);

impl Resources {
    pub(super) async fn find(&self, client: &Client, api_version: &str, kind: &str) -> Result<ApiResource, String> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some((since, found)) = self.0.lock().get(&key)
            && since.elapsed() < FRESH
        {
            return Ok(found.clone());
        }
        let (group, version) = group_version(api_version)?;
        let path = if group.is_empty() { vec!["api", version] } else { vec!["apis", group, version] };
        let unknown = || match group {
            "" => format!("no matches for kind \"{kind}\" in group \"\""),
            group => format!("no matches for kind \"{kind}\" in group \"{group}\""),
        };
        let list: APIResourceList = client.get_at(&path, &[]).await.map_err(|error| match error.is_not_found() {
            true => unknown(),
            false => error.to_string(),
        })?;
        let found = list.resources.into_iter().find(|found| found.kind == kind && !found.name.contains('/'));
        let found = found.ok_or_else(unknown)?;
        let found = ApiResource {
            gvr: Gvr {
                group: group.to_owned().into(),
                version: version.to_owned().into(),
                resource: found.name.into(),
            },
            kind: found.kind,
            namespaced: found.namespaced,
            verbs: found.verbs,
        };
        self.0.lock().insert(key, (Instant::now(), found.clone()));
        Ok(found)
    }
}

/// Nothing means the core group, as it does in references to a ReplicationController.
fn group_version(api_version: &str) -> Result<(&str, &str), String> {
    match api_version.split('/').collect::<Vec<_>>()[..] {
        [""] | ["", ""] => Ok(("", "v1")),
        [version] => Ok(("", version)),
        [group, version] => Ok((group, version)),
        _ => Err(format!("unexpected GroupVersion string: {api_version}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_versions_of_references() {
        for (text, expected) in [
            ("", Ok(("", "v1"))),
            ("/", Ok(("", "v1"))),
            ("v1", Ok(("", "v1"))),
            ("apps/v1", Ok(("apps", "v1"))),
            ("a/b/c", Err("unexpected GroupVersion string: a/b/c".to_owned())),
        ] {
            assert_eq!(group_version(text), expected, "{text}");
        }
    }
}
