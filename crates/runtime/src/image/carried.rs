//! Images that the binary carries: `cox.local/hello`, so that a cluster without a registry has something to run.
//!
//! Names below [`REGISTRY`] never go to the network: a pull puts the image into the store from here, as if a
//! registry had delivered it, whatever the pull policy.

use std::io;
use std::sync::Arc;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::config::{Descriptor, ImageConfig, architecture};
use super::pull::{io_error, pair_layers, unpack_layer};
use super::store::{Image, ImageStore};
use super::{PullError, Reference};
use crate::record;

/// The host part of the names of carried images. `.local` names are never looked up in public DNS.
pub(crate) const REGISTRY: &str = "cox.local";

/// One program that needs nothing around it, made into an image of one layer.
struct Carried {
    repository: &'static str,
    program: &'static [u8],
    port: u16,
}

const IMAGES: &[Carried] =
    &[Carried { repository: "hello", program: include_bytes!(concat!(env!("OUT_DIR"), "/hello")), port: 80 }];

/// The image that `reference`, a name below [`REGISTRY`], stands for. There is one version of each: `latest`.
pub(crate) async fn pull(store: &Arc<ImageStore>, reference: &Reference) -> Result<Arc<Image>, PullError> {
    let known = IMAGES.iter().find(|image| image.repository == reference.repository);
    let Some(carried) = known.filter(|_| reference.selector() == "latest") else {
        let names: Vec<String> = IMAGES.iter().map(|image| format!("{REGISTRY}/{}", image.repository)).collect();
        return Err(PullError::NotFound(format!("{reference}: this binary carries {}", names.join(", "))));
    };
    let layer = carried.layer().map_err(io_error("making a layer"))?;
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Entrypoint": [format!("/{}", carried.repository)],
            "ExposedPorts": {format!("{}/tcp", carried.port): {}},
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
    });
    let config = config.to_string().into_bytes();
    let describe = |media_type: &str, bytes: &[u8]| Descriptor {
        media_type: format!("application/vnd.oci.image.{media_type}"),
        digest: digest(bytes),
        size: bytes.len() as u64,
        ..Default::default()
    };
    let (layer_descriptor, config_descriptor) = (describe("layer.v1.tar", &layer), describe("config.v1+json", &config));
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config_descriptor,
        "layers": [layer_descriptor],
    });
    let manifest = manifest.to_string().into_bytes();
    let manifest_descriptor = describe("manifest.v1+json", &manifest);
    let mut claim = store.claim();
    for (descriptor, bytes) in
        [(&layer_descriptor, &layer), (&config_descriptor, &config), (&manifest_descriptor, &manifest)]
    {
        claim.blob(&descriptor.digest);
        record::write_bytes(&store.blob_path(&descriptor.digest), bytes).map_err(io_error("storing a blob"))?;
    }
    let parsed: ImageConfig = serde_json::from_slice(&config).map_err(|error| PullError::Content(error.to_string()))?;
    let layers = pair_layers(&[layer_descriptor], &parsed)?;
    for layer in &layers {
        claim.layer(layer);
        unpack_layer(store, layer).await?;
    }
    let image = Image {
        id: config_descriptor.digest.clone(),
        size: (config.len() + layer.len()) as u64,
        tags: reference.tagged().into_iter().collect(),
        digests: vec![reference.with_digest(&manifest_descriptor.digest)],
        manifest: Some(manifest_descriptor),
        config_descriptor,
        layers,
        config: parsed.config.unwrap_or_default(),
        pinned: true,
    };
    store.put(image).map_err(|error| PullError::Content(error.to_string()))
}

impl Carried {
    fn layer(&self) -> io::Result<Vec<u8>> {
        let mut layer = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(self.program.len() as u64);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        layer.append_data(&mut header, self.repository, self.program)?;
        layer.into_inner()
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", api::hex::encode(Sha256::digest(bytes)))
}
