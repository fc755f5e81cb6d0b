//! The files of volumes made from API objects: configMap, secret, downwardAPI and projected.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use api::sort::CompactCollect as _;
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Pod, Volume};

use super::Volumes;
use super::atomic_writer::{File, Payload};
use super::tokens::TokenError;
use crate::env::{self, Context, EnvError};
use crate::objects::NotSynced;
use crate::resources::UnsupportedResource;
use crate::{resources, state};

const DEFAULT_MODE: i32 = 0o644;
/// Files of one volume, together: many times what an object holds. A pod may name one large value again and again.
const MAX_BYTES: usize = 64 << 20;

/// Why a volume's files cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PayloadError {
    #[error("{kind} \"{name}\" not found")]
    NoObject { kind: &'static str, name: String },
    #[error("{missing}: {key}")]
    NoKey { missing: &'static str, key: String },
    #[error("container {0} not found")]
    NoContainer(String),
    #[error("the files are larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Field(#[from] EnvError),
    #[error(transparent)]
    Resource(#[from] UnsupportedResource),
}

/// The files of a volume so far.
#[derive(Default)]
struct Files {
    payload: Payload,
    bytes: usize,
}

impl Files {
    fn add(&mut self, path: &str, data: &[u8], mode: u32, uid: Option<u32>) -> Result<(), PayloadError> {
        self.bytes = self.bytes.saturating_add(data.len());
        if self.bytes > MAX_BYTES {
            return Err(PayloadError::TooLarge);
        }
        self.payload.insert(path.to_owned(), File { data: data.to_vec(), mode, uid });
        Ok(())
    }
}

/// What a volume shows of an object.
#[derive(Clone, Copy)]
struct Shown<'a> {
    name: &'a str,
    /// All keys where it names none.
    items: Option<&'a [KeyToPath]>,
    is_optional: bool,
    mode: i32,
}

impl<'a> Shown<'a> {
    fn new(name: &'a str, items: Option<&'a [KeyToPath]>, optional: Option<bool>, mode: i32) -> Self {
        Self { name, items, is_optional: optional == Some(true), mode }
    }

    /// The object is not there.
    fn missing(&self, kind: &'static str) -> Result<(), PayloadError> {
        if self.is_optional { Ok(()) } else { Err(PayloadError::NoObject { kind, name: self.name.to_owned() }) }
    }
}

impl Volumes {
    /// Collects what the volume shows now.
    pub(super) async fn payload(&self, volume: &Volume, context: &Context<'_>) -> Result<Payload, PayloadError> {
        let mut files = Files::default();
        if let Some(source) = &volume.config_map {
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            let shown = Shown::new(&source.name, source.items.as_deref(), source.optional, mode);
            self.config_map(&mut files, context.pod, shown).await?;
        } else if let Some(source) = &volume.secret {
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            let name = source.secret_name.as_deref().unwrap_or_default();
            let shown = Shown::new(name, source.items.as_deref(), source.optional, mode);
            self.secret(&mut files, context.pod, shown).await?;
        } else if let Some(source) = &volume.downward_api {
            downward(&mut files, context, source.items.as_deref(), source.default_mode.unwrap_or(DEFAULT_MODE))?;
        } else if let Some(source) = &volume.projected {
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            for part in source.sources.iter().flatten() {
                if let Some(map) = &part.config_map {
                    let shown = Shown::new(&map.name, map.items.as_deref(), map.optional, mode);
                    self.config_map(&mut files, context.pod, shown).await?;
                }
                if let Some(secret) = &part.secret {
                    let shown = Shown::new(&secret.name, secret.items.as_deref(), secret.optional, mode);
                    self.secret(&mut files, context.pod, shown).await?;
                }
                if let Some(fields) = &part.downward_api {
                    downward(&mut files, context, fields.items.as_deref(), mode)?;
                }
                if let Some(token) = &part.service_account_token {
                    let value =
                        self.tokens.get(context.pod, token.audience.as_deref(), token.expiration_seconds).await?;
                    let owner = common_user(context.pod);
                    let restricted = owner.is_some() || super::fs_group(context.pod).is_some();
                    let mode = if restricted { 0o600 } else { mode as u32 };
                    files.add(&token.path, value.as_bytes(), mode, owner.filter(|uid| *uid != 0))?;
                }
            }
        }
        Ok(files.payload)
    }

    async fn config_map(&self, files: &mut Files, pod: &Pod, shown: Shown<'_>) -> Result<(), PayloadError> {
        let Some(map) = self.config_maps.get(state::uid(pod), state::namespace(pod), shown.name).await? else {
            return shown.missing("configmap");
        };
        let mut data: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        data.extend(map.data.iter().flatten().map(|(key, value)| (key.clone(), value.clone().into_bytes())));
        data.extend(map.binary_data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())));
        project(files, &data, shown, "configmap references non-existent config key")
    }

    async fn secret(&self, files: &mut Files, pod: &Pod, shown: Shown<'_>) -> Result<(), PayloadError> {
        let Some(secret) = self.secrets.get(state::uid(pod), state::namespace(pod), shown.name).await? else {
            return shown.missing("secret");
        };
        let data: BTreeMap<String, Vec<u8>> =
            secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).compact_collect();
        project(files, &data, shown, "references non-existent secret key")
    }
}

/// All keys, or the chosen ones under the chosen paths.
fn project(
    files: &mut Files,
    data: &BTreeMap<String, Vec<u8>>,
    Shown { items, is_optional, mode, .. }: Shown<'_>,
    missing: &'static str,
) -> Result<(), PayloadError> {
    match items.filter(|items| !items.is_empty()) {
        None => {
            for (key, value) in data {
                files.add(key, value, mode as u32, None)?;
            }
        }
        Some(items) => {
            for item in items {
                match data.get(&item.key) {
                    Some(value) => {
                        let mode = item.mode.unwrap_or(mode) as u32;
                        files.add(&item.path, value, mode, None)?;
                    }
                    None if is_optional => {}
                    None => return Err(PayloadError::NoKey { missing, key: item.key.clone() }),
                }
            }
        }
    }
    Ok(())
}

fn downward(
    files: &mut Files,
    context: &Context<'_>,
    items: Option<&[DownwardAPIVolumeFile]>,
    default_mode: i32,
) -> Result<(), PayloadError> {
    // Copies of all of the pod: one for all files.
    let containers = LazyCell::new(|| state::all_containers(context.pod));
    for item in items.unwrap_or_default() {
        let value = if let Some(field) = &item.field_ref {
            env::field_value(&field.field_path, context)?
        } else if let Some(field) = &item.resource_field_ref {
            let name = field.container_name.as_deref().unwrap_or_default();
            let container = containers
                .iter()
                .find(|container| container.name == name)
                .ok_or_else(|| PayloadError::NoContainer(name.to_owned()))?;
            resources::field_value(container, &field.resource, field.divisor.as_ref(), context.allocatable)?
        } else {
            continue;
        };
        let mode = item.mode.unwrap_or(default_mode) as u32;
        files.add(&item.path, value.as_bytes(), mode, None)?;
    }
    Ok(())
}

/// The user all containers run as, if it is one: tokens are then readable by it alone.
fn common_user(pod: &Pod) -> Option<u32> {
    let containers = state::all_containers(pod);
    let mut users =
        containers.iter().map(|container| crate::containers::effective_security(pod, container).run_as_user);
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_a_large_value_is_not_shown_under_any_number_of_names() {
        let data = BTreeMap::from([("a".to_string(), vec![b'x'; 1 << 20])]);
        let item = |at| KeyToPath { key: "a".into(), path: format!("a{at}"), mode: None };
        for (count, is_good) in [(64, true), (65, false)] {
            let (mut files, items) = (Files::default(), (0..count).map(item).collect::<Vec<_>>());
            let result = project(&mut files, &data, Shown::new("c", Some(&items), None, 0o644), "gone");
            assert_eq!(result.is_ok(), is_good, "{count}");
        }
    }

    #[test]
    fn keys_are_chosen_and_missing_ones_told() {
        let data = BTreeMap::from([("a".to_string(), b"1".to_vec()), ("b".to_string(), b"2".to_vec())]);
        let item = |key: &str, path: &str, mode| KeyToPath { key: key.into(), path: path.into(), mode };
        for (items, is_optional, expected) in [
            (vec![], false, Ok("a:644 b:644")),
            (vec![item("a", "path/to/a", Some(0o400))], false, Ok("path/to/a:400")),
            (vec![item("x", "x", None)], true, Ok("")),
            (vec![item("x", "x", None)], false, Err("gone: x")),
        ] {
            let mut files = Files::default();
            let result = project(&mut files, &data, Shown::new("c", Some(&items), Some(is_optional), 0o644), "gone");
            let told = files.payload.iter().map(|(path, file)| format!("{path}:{:o}", file.mode));
            let told: Vec<String> = told.collect();
            match expected {
                Ok(text) => {
                    result.unwrap();
                    assert_eq!(told.join(" "), text);
                }
                Err(text) => assert_eq!(result.unwrap_err().to_string(), text),
            }
        }
    }
}
