//! Images as files: docker-archive (`docker save`) and OCI layout tarballs, in and out.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::Reference;
use super::config::{Descriptor, ImageConfig, Manifest, choose};
use super::pull::{pair_layers, total_size, unpack_layer};
use super::store::{IMPORTED, Image, ImageStore};
use crate::error::{Error, Result, doing};
use crate::record;

/// Imports every image of the archive at `path`, compressed or not; `pinned` ones are kept from garbage collection.
pub(crate) async fn import(store: &Arc<ImageStore>, path: &Path, pinned: bool) -> Result<Vec<Arc<Image>>> {
    let _lease = store.lease().await?;
    let (reading, source) = (store.clone(), path.to_path_buf());
    let archive = tokio::task::spawn_blocking(move || Archive::read(&reading, &source))
        .await
        .map_err(|error| Error::Archive(error.to_string()))??;
    let mut images = Vec::new();
    for mut image in archive.images()? {
        for layer in &image.layers {
            unpack_layer(store, layer).await.map_err(|error| Error::Archive(error.to_string()))?;
        }
        image.pinned = pinned;
        images.push(store.put(image)?);
    }
    match images.is_empty() {
        true => Err(Error::Archive(format!("archive {} holds no image for this machine", path.display()))),
        false => Ok(images),
    }
}

/// The files of an archive: small ones in memory, large ones already in the store as blobs.
struct Archive {
    files: HashMap<String, Content>,
}

#[derive(Clone)]
struct Content {
    digest: String,
    size: u64,
    /// Kept for files that may be documents.
    bytes: Option<Vec<u8>>,
}

/// Documents (manifests, configurations) are smaller than this.
const MAX_DOCUMENT: u64 = 4 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Archive {
    fn read(store: &ImageStore, path: &Path) -> Result<Self> {
        let reading = || format!("reading {}", path.display());
        let mut file = File::open(path).map_err(doing(reading()))?;
        let mut magic = [0u8; 4];
        let n = file.read(&mut magic).map_err(doing(reading()))?;
        io::Seek::rewind(&mut file).map_err(doing(reading()))?;
        let reader: Box<dyn Read> = match &magic[..n] {
            [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(file)),
            [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::Decoder::new(file).map_err(doing(reading()))?),
            _ => Box::new(file),
        };
        let mut files = HashMap::new();
        let mut links = Vec::new();
        let mut archive = tar::Archive::new(reader);
        for entry in archive.entries().map_err(doing(reading()))? {
            let mut entry = entry.map_err(doing(reading()))?;
            let name = entry.path().map_err(doing(reading()))?.into_owned();
            match entry.header().entry_type() {
                tar::EntryType::Regular => {
                    let content = ingest(store, &mut entry).map_err(doing(reading()))?;
                    files.insert(normal(&name), content);
                }
                // Older archives store equal layers as links to each other.
                tar::EntryType::Symlink | tar::EntryType::Link => {
                    if let Ok(Some(target)) = entry.link_name() {
                        let beside = name.parent().unwrap_or(Path::new("")).join(&target);
                        links.push((normal(&name), [normal(&beside), normal(&target)]));
                    }
                }
                _ => {}
            }
        }
        for (name, targets) in links {
            if let Some(content) = targets.iter().find_map(|t| files.get(t)).cloned() {
                files.insert(name, content);
            }
        }
        Ok(Self { files })
    }

    fn document<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<Result<T>> {
        let bytes = self.files.get(name)?.bytes.as_ref()?;
        Some(serde_json::from_slice(bytes).map_err(|error| Error::Archive(format!("archive: {name}: {error}"))))
    }

    fn images(&self) -> Result<Vec<Image>> {
        let docker: Vec<DockerManifest> = self.document("manifest.json").transpose()?.unwrap_or_default();
        let Some(index) = self.document::<Manifest>("index.json").transpose()? else {
            return docker.iter().map(|manifest| self.docker_image(manifest)).collect();
        };
        let mut images = Vec::new();
        for descriptor in &index.manifests {
            if let Some(mut image) = self.layout_image(descriptor)? {
                // `docker save` writes the names here.
                let config = format!("blobs/sha256/{}", image.id.trim_start_matches("sha256:"));
                for manifest in docker.iter().filter(|m| m.config == config) {
                    add_names(&mut image, manifest.repo_tags.iter().flatten());
                }
                images.push(image);
            }
        }
        Ok(images)
    }

    fn blob(&self, digest: &str) -> Option<&Content> {
        let content = self.files.get(&format!("blobs/sha256/{}", digest.strip_prefix("sha256:")?))?;
        // The name is a claim; the digest is what was read.
        (content.digest == digest).then_some(content)
    }

    /// None for an image of another platform.
    fn layout_image(&self, top: &Descriptor) -> Result<Option<Image>> {
        let missing = |digest: &str| Error::Archive(format!("archive: blob {digest} is missing or broken"));
        let mut descriptor = top.clone();
        let manifest: Manifest = loop {
            let bytes = self.blob(&descriptor.digest).and_then(|c| c.bytes.as_ref());
            let bytes = bytes.ok_or_else(|| missing(&descriptor.digest))?;
            let manifest: Manifest = serde_json::from_slice(bytes)
                .map_err(|error| Error::Archive(format!("archive: manifest {}: {error}", descriptor.digest)))?;
            if manifest.is_ambiguous() {
                let digest = descriptor.digest;
                return Err(Error::Archive(format!("archive: manifest {digest} is both an image and an index")));
            }
            if manifest.manifests.is_empty() {
                break manifest;
            }
            match choose(&manifest.manifests).filter(|d| d.digest != descriptor.digest) {
                Some(chosen) => descriptor = chosen.clone(),
                None => return Ok(None),
            }
        };
        let Some(config_descriptor) = manifest.config.clone() else { return Ok(None) };
        let mut image = self.describe(config_descriptor, &manifest.layers)?;
        descriptor.annotations.clear();
        image.manifest = Some(descriptor);
        let names = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
        let name = names.iter().find_map(|key| top.annotations.get(*key)).filter(|name| name.contains(['/', ':']));
        add_names(&mut image, name.into_iter());
        if let Some(reference) = name.and_then(|n| n.parse::<Reference>().ok()) {
            image.digests.push(reference.with_digest(&top.digest));
        }
        Ok(Some(image))
    }

    fn docker_image(&self, manifest: &DockerManifest) -> Result<Image> {
        let find = |name: &String| {
            let content = self.files.get(&normal(Path::new(name)));
            content.ok_or_else(|| Error::Archive(format!("archive: {name} is missing")))
        };
        let descriptor = |content: &Content, media_type: &str| Descriptor {
            media_type: media_type.into(),
            digest: content.digest.clone(),
            size: content.size,
            ..Default::default()
        };
        let config = descriptor(find(&manifest.config)?, "application/vnd.oci.image.config.v1+json");
        let layers = manifest
            .layers
            .iter()
            .map(|name| Ok(descriptor(find(name)?, "application/vnd.oci.image.layer.v1.tar")))
            .collect::<Result<Vec<_>>>()?;
        let mut image = self.describe(config, &layers)?;
        add_names(&mut image, manifest.repo_tags.iter().flatten());
        Ok(image)
    }

    fn describe(&self, config_descriptor: Descriptor, layers: &[Descriptor]) -> Result<Image> {
        let content = self.files.values().find(|c| c.digest == config_descriptor.digest);
        let bytes = content.and_then(|c| c.bytes.as_ref());
        let bytes = bytes.ok_or_else(|| Error::Archive("archive: the image's configuration is missing".into()))?;
        let config: ImageConfig = serde_json::from_slice(bytes)
            .map_err(|error| Error::Archive(format!("archive: configuration: {error}")))?;
        let layers = pair_layers(layers, &config).map_err(|error| Error::Archive(error.to_string()))?;
        Ok(Image {
            id: config_descriptor.digest.clone(),
            size: total_size(&config_descriptor, &layers),
            config_descriptor,
            layers,
            config: config.config.unwrap_or_default(),
            ..Default::default()
        })
    }
}

fn add_names<'a>(image: &mut Image, names: impl Iterator<Item = &'a String>) {
    for tag in names.filter_map(|name| name.parse::<Reference>().ok()).filter_map(|r| r.tagged()) {
        if !image.tags.contains(&tag) {
            image.tags.push(tag);
        }
    }
}

/// `./a/../b` as `b`: names in archives are compared, never opened.
fn normal(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.extend(part.to_str()),
            Component::ParentDir => drop(parts.pop()),
            _ => {}
        }
    }
    parts.join("/")
}

/// Brings one file of an archive into the store.
fn ingest(store: &ImageStore, reader: &mut impl Read) -> io::Result<Content> {
    let temporary = store.ingest_path(&format!("{IMPORTED}{}", record::new_id()?));
    let mut file = File::create(&temporary)?;
    let mut hash = Sha256::new();
    let (mut size, mut bytes) = (0u64, Vec::new());
    let mut buffer = vec![0u8; 1 << 17];
    loop {
        let n = reader.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
        file.write_all(&buffer[..n])?;
        size += n as u64;
        if size <= MAX_DOCUMENT {
            bytes.extend_from_slice(&buffer[..n]);
        }
    }
    let digest = format!("sha256:{}", api::hex::encode(hash.finalize()));
    std::fs::rename(&temporary, store.blob_path(&digest))?;
    Ok(Content { digest, size, bytes: (size <= MAX_DOCUMENT).then_some(bytes) })
}

/// Writes images as an OCI layout that `docker load`, containerd and we ourselves can read.
pub(crate) fn export(store: &ImageStore, images: &[Arc<Image>], target: &Path) -> Result<()> {
    let writing = || format!("writing {}", target.display());
    let file = File::create(target).map_err(doing(writing()))?;
    let mut builder = tar::Builder::new(io::BufWriter::new(file));
    let mut written = std::collections::HashSet::new();
    let mut add = |name: String, bytes: &[u8]| -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        if written.insert(name.clone()) { builder.append_data(&mut header, name, bytes) } else { Ok(()) }
    };
    let blob_name = |digest: &str| format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"));
    let (mut manifests, mut docker) = (Vec::new(), Vec::new());
    let mut write_all = || -> io::Result<()> {
        for image in images {
            let blobs = image.layers.iter().map(|l| &l.blob).chain([&image.config_descriptor]);
            for blob in blobs.clone() {
                add(blob_name(&blob.digest), &std::fs::read(store.blob_path(&blob.digest))?)?;
            }
            let manifest = manifest_of(store, image)?;
            let digest = format!("sha256:{}", api::hex::encode(Sha256::digest(&manifest)));
            add(blob_name(&digest), &manifest)?;
            for tag in image.tags.iter().map(Some).chain(image.tags.is_empty().then_some(None)) {
                let mut entry = json!({
                    "mediaType": "application/vnd.oci.image.manifest.v1+json",
                    "digest": digest,
                    "size": manifest.len(),
                });
                if let Some(tag) = tag {
                    entry["annotations"] = json!({ "io.containerd.image.name": tag });
                }
                manifests.push(entry);
            }
            docker.push(json!({
                "Config": blob_name(&image.config_descriptor.digest),
                "RepoTags": image.tags,
                "Layers": image.layers.iter().map(|l| blob_name(&l.blob.digest)).collect::<Vec<_>>(),
            }));
        }
        add("oci-layout".into(), json!({ "imageLayoutVersion": "1.0.0" }).to_string().as_bytes())?;
        add("index.json".into(), json!({ "schemaVersion": 2, "manifests": manifests }).to_string().as_bytes())?;
        add("manifest.json".into(), json!(docker).to_string().as_bytes())
    };
    write_all().map_err(doing(writing()))?;
    builder.into_inner().and_then(|mut file| file.flush()).map_err(doing(writing()))
}

/// The manifest an image came with, or one made for it.
fn manifest_of(store: &ImageStore, image: &Image) -> io::Result<Vec<u8>> {
    if let Some(descriptor) = &image.manifest {
        return std::fs::read(store.blob_path(&descriptor.digest));
    }
    let layers: Vec<&Descriptor> = image.layers.iter().map(|l| &l.blob).collect();
    Ok(json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": image.config_descriptor,
        "layers": layers,
    })
    .to_string()
    .into_bytes())
}

/// Imports all archives of a directory that are new since the last time; returns what could not be imported.
pub(crate) async fn import_directory(store: &Arc<ImageStore>, directory: &Path) -> Vec<String> {
    let mut failed = Vec::new();
    let marker = store.root().join("imported.json");
    let mut known: HashMap<String, (u64, i64)> = record::read(&marker).unwrap_or_default();
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let is_archive = [".tar", ".tar.gz", ".tgz", ".tar.zst"].iter().any(|end| name.ends_with(end));
        let Some(metadata) = std::fs::metadata(&path).ok().filter(|m| m.is_file() && is_archive) else { continue };
        let stamp = (metadata.len(), std::os::unix::fs::MetadataExt::mtime(&metadata));
        if known.get(&name) == Some(&stamp) {
            continue;
        }
        match import(store, &path, true).await {
            Ok(images) => {
                tracing::info!(archive = name, images = images.len(), "imported");
                known.insert(name, stamp);
            }
            Err(error) => failed.push(format!("{}: {error}", path.display())),
        }
    }
    if let Err(error) = record::write(&marker, &known) {
        failed.push(format!("{}: {error}", marker.display()));
    }
    failed
}
