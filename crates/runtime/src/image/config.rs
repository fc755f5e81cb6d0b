//! The documents that describe an image: manifests, indexes and configurations, Docker's and OCI's alike.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A manifest or an index of manifests: one of the two lists is filled.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) config: Option<Descriptor>,
    pub(crate) layers: Vec<Descriptor>,
    pub(crate) manifests: Vec<Descriptor>,
}

impl Manifest {
    /// Whether some would read an image here and others an index, under one digest (CVE-2021-41190).
    pub(crate) fn is_ambiguous(&self) -> bool {
        !self.manifests.is_empty() && (self.config.is_some() || !self.layers.is_empty())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Platform {
    pub(crate) architecture: String,
    pub(crate) os: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) variant: String,
}

/// The `config` blob.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ImageConfig {
    pub(crate) config: Option<ExecutionConfig>,
    pub(crate) rootfs: RootFs,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RootFs {
    pub(crate) diff_ids: Vec<String>,
}

/// How to run it. Docker writes `null` for empty lists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct ExecutionConfig {
    pub(crate) user: String,
    pub(crate) env: Option<Vec<String>>,
    pub(crate) entrypoint: Option<Vec<String>>,
    pub(crate) cmd: Option<Vec<String>>,
    pub(crate) working_dir: String,
    pub(crate) stop_signal: String,
    pub(crate) volumes: Option<BTreeMap<String, serde_json::Value>>,
    pub(crate) labels: Option<BTreeMap<String, String>>,
}

pub(crate) const MANIFEST_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, \
     application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.v2+json, \
     application/vnd.docker.distribution.manifest.list.v2+json";

/// The manifest for this machine from an index.
pub(crate) fn choose(manifests: &[Descriptor]) -> Option<&Descriptor> {
    let architecture = architecture();
    let fits = |d: &&Descriptor| d.platform.as_ref().is_none_or(|p| p.architecture == architecture && p.os == "linux");
    manifests.iter().find(|d| d.platform.is_some() && fits(d)).or_else(|| manifests.iter().find(fits))
}

/// This machine's processor, by the name that images use.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_an_image_to_some_and_an_index_to_others_is_neither() {
        for (text, expected) in [
            (r#"{"config": {"digest": "sha256:1"}, "layers": [{"digest": "sha256:2"}]}"#, false),
            (r#"{"manifests": [{"digest": "sha256:3"}]}"#, false),
            (r#"{"config": {"digest": "sha256:1"}, "manifests": [{"digest": "sha256:3"}]}"#, true),
            (r#"{"layers": [{"digest": "sha256:2"}], "manifests": [{"digest": "sha256:3"}]}"#, true),
        ] {
            let manifest: Manifest = serde_json::from_str(text).unwrap();
            assert_eq!(manifest.is_ambiguous(), expected, "{text}");
        }
    }

    #[test]
    fn an_index_yields_this_machines_manifest() {
        let of = |arch: &str, os: &str, digest: &str| Descriptor {
            digest: digest.into(),
            platform: Some(Platform { architecture: arch.into(), os: os.into(), variant: String::new() }),
            ..Default::default()
        };
        let ours = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        let list = [of("s390x", "linux", "a"), of(ours, "windows", "b"), of(ours, "linux", "c")];
        assert_eq!(choose(&list).map(|d| d.digest.as_str()), Some("c"));
        assert_eq!(choose(&list[..2]), None);
    }
}
