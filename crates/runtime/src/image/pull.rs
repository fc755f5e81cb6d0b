//! Pulling: from a name to an image in the store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::image::is_sha256;
use futures_util::FutureExt;
use http::StatusCode;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::config::{Descriptor, ImageConfig, MANIFEST_TYPES, Manifest, choose};
use super::mirrors::Mirrors;
use super::registry::{Registry, next_chunk};
use super::store::{Claim, Image, ImageStore, Layer};
use super::{PullError, Reference, carried};
use crate::bounds::{Bounds, MAX_DOCUMENT, MAX_LAYERS};
use crate::{record, unpack};

/// Layers fetched at the same time, per pull.
const PARALLEL_LAYERS: usize = 4;
/// How often an interrupted blob is resumed before the pull fails.
const BLOB_ATTEMPTS: usize = 4;

#[derive(Clone)]
pub(crate) enum Credentials {
    Basic {
        username: String,
        password: String,
    },
    /// A ready registry token.
    Token(String),
    /// What registry tokens are given for (`identitytoken` in Docker's configuration).
    Identity(String),
}

pub(super) fn io_error(doing: impl Into<String>) -> impl FnOnce(io::Error) -> PullError {
    let doing = doing.into();
    move |source| PullError::Io { doing, source }
}

/// Fetches `name` from the first server that has it. What is in the store already is not fetched again.
pub(crate) async fn pull(
    store: &Arc<ImageStore>,
    mirrors: &Mirrors,
    name: &str,
    credentials: Option<Credentials>,
) -> Result<Arc<Image>, PullError> {
    let reference = parse(name)?;
    let _lease = store.lease().await.map_err(|error| PullError::Content(error.to_string()))?;
    if reference.host == carried::REGISTRY {
        return carried::pull(store, &reference).await;
    }
    let endpoints = mirrors
        .endpoints(&reference)
        .map_err(|source| PullError::Io { doing: format!("finding mirrors of {}", reference.host), source })?;
    let mut failure: Option<PullError> = None;
    for endpoint in endpoints {
        let registry = Arc::new(Registry::new(endpoint, credentials.clone())?);
        let mut claim = store.claim();
        match pull_from(store, registry.clone(), &reference, &mut claim).await {
            Ok(image) => return Ok(image),
            Err(error) => {
                tracing::debug!(image = %reference, server = registry.url(), %error, "server did not deliver");
                // A server that answered tells more than one that could not be reached.
                if failure.as_ref().is_none_or(|old| matches!(old, PullError::Unreachable(_))) {
                    failure = Some(error);
                }
            }
        }
    }
    Err(failure.unwrap_or_else(|| PullError::NotFound(reference.to_string())))
}

fn parse(name: &str) -> Result<Reference, PullError> {
    name.parse().map_err(|source| PullError::Reference { name: name.to_owned(), source })
}

/// Pulls here, or where this machine's images are pulled. A registry on the loopback may be the node's own, or that of the machine
/// which the node is a part of: the nearer one is asked first.
pub(crate) async fn pull_through<P>(
    elsewhere: Option<&Handle>,
    name: &str,
    pull: impl Fn() -> P,
) -> Result<Arc<Image>, PullError>
where
    P: Future<Output = Result<Arc<Image>, PullError>> + Send + 'static,
{
    let Some(elsewhere) = elsewhere else { return pull().await };
    if parse(name)?.is_on_loopback() {
        match pull().await {
            Err(PullError::Unreachable(error)) => {
                tracing::debug!(image = name, error, "not on the node's own loopback")
            }
            pulled => return pulled,
        }
    }
    let pulled = AbortOnDropHandle::new(elsewhere.spawn(pull())).await;
    pulled.map_err(io::Error::other).map_err(io_error(format!("pulling {name}")))?
}

async fn pull_from(
    store: &Arc<ImageStore>,
    registry: Arc<Registry>,
    reference: &Reference,
    claim: &mut Claim,
) -> Result<Arc<Image>, PullError> {
    let (top_digest, manifest_descriptor, manifest) = resolve(store, &registry, reference, claim).await?;
    let config_descriptor =
        manifest.config.clone().ok_or_else(|| PullError::Content("the manifest has no configuration".into()))?;
    check_sizes(&config_descriptor, &manifest.layers)?;
    claim.blob(&config_descriptor.digest);
    fetch(store, &registry, &config_descriptor).await?;
    let bytes = tokio::fs::read(store.blob_path(&config_descriptor.digest)).await.map_err(io_error("reading"))?;
    let config: ImageConfig = serde_json::from_slice(&bytes)
        .map_err(|error| PullError::Content(format!("configuration {}: {error}", config_descriptor.digest)))?;
    let layers = pair_layers(&manifest.layers, &config)?;
    layers.iter().for_each(|layer| claim.layer(layer));
    let mut tasks: JoinSet<Result<(), PullError>> = JoinSet::new();
    let slots = Arc::new(tokio::sync::Semaphore::new(PARALLEL_LAYERS));
    for layer in layers.clone() {
        let (store, registry, slots) = (store.clone(), registry.clone(), slots.clone());
        tasks.spawn(FutureExt::boxed(async move {
            let _slot = slots.acquire().await;
            if !store.layer_path(&layer.diff_id).exists() {
                fetch(&store, &registry, &layer.blob).await?;
                unpack_layer(&store, &layer).await?;
            }
            Ok(())
        }));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap_or_else(|error| Err(PullError::Content(error.to_string())))?;
    }
    let image = Image {
        id: config_descriptor.digest.clone(),
        size: total_size(&config_descriptor, &layers),
        manifest: Some(manifest_descriptor),
        config_descriptor,
        tags: reference.tagged().into_iter().collect(),
        digests: vec![reference.with_digest(&top_digest)],
        layers,
        config: config.config.unwrap_or_default(),
        pinned: false,
    };
    store.put(image).map_err(|error| PullError::Content(error.to_string()))
}

/// Follows an index to this machine's manifest: (digest of what the name points to, manifest, its content).
async fn resolve(
    store: &ImageStore,
    registry: &Registry,
    reference: &Reference,
    claim: &mut Claim,
) -> Result<(String, Descriptor, Manifest), PullError> {
    let mut selector = reference.selector().to_string();
    let mut top = None;
    // An index of indexes is allowed, an endless chain is not.
    for _ in 0..4 {
        let (bytes, media_type) = registry.document(&format!("manifests/{selector}"), MANIFEST_TYPES).await?;
        let digest = format!("sha256:{}", api::hex::encode(Sha256::digest(&bytes)));
        if is_another(&selector, &digest) {
            return Err(PullError::Content(format!("manifest {selector} has digest {digest}")));
        }
        let manifest: Manifest = serde_json::from_slice(&bytes)
            .map_err(|error| PullError::Content(format!("manifest {selector}: {error}")))?;
        if manifest.is_ambiguous() {
            return Err(PullError::Content(format!("manifest {selector} is both an image and an index")));
        }
        let top_digest = top.get_or_insert_with(|| digest.clone()).clone();
        if manifest.manifests.is_empty() {
            claim.blob(&digest);
            record::write_bytes(&store.blob_path(&digest), &bytes).map_err(io_error("storing a manifest"))?;
            let descriptor = Descriptor { media_type, digest, size: bytes.len() as u64, ..Default::default() };
            return Ok((top_digest, descriptor, manifest));
        }
        selector = choose(&manifest.manifests)
            .filter(|d| is_sha256(&d.digest))
            .map(|d| d.digest.clone())
            .ok_or_else(|| PullError::NotFound(format!("{reference}: no manifest for this platform")))?;
    }
    Err(PullError::Content(format!("{reference}: indexes nested too deep")))
}

/// Whether a document is not the one that was asked for. A tag has no colon; whether a digest of another kind is right is not
/// known here, so it is not.
fn is_another(selector: &str, digest: &str) -> bool {
    selector.contains(':') && selector != digest
}

/// Refuses what no image is, before anything of it is fetched.
fn check_sizes(config: &Descriptor, layers: &[Descriptor]) -> Result<(), PullError> {
    let refused = |what: String| Err(PullError::Content(format!("the image is refused: {what}")));
    match layers.iter().find(|layer| layer.size > Bounds::LAYER.bytes) {
        _ if config.size > MAX_DOCUMENT => refused(format!("its configuration has {} bytes", config.size)),
        _ if layers.len() > MAX_LAYERS => refused(format!("it has {} layers", layers.len())),
        Some(layer) => refused(format!("layer {} has {} bytes", layer.digest, layer.size)),
        None => Ok(()),
    }
}

/// A blob that is there already came with another manifest, perhaps as a layer of any size: this one may have promised less, and
/// have been let in for that.
fn check_length(blob: &Descriptor, length: u64) -> Result<(), PullError> {
    match length == blob.size {
        true => Ok(()),
        false => Err(PullError::Content(format!("blob {} has {length} bytes, not {}", blob.digest, blob.size))),
    }
}

/// What an image takes in the store.
pub(crate) fn total_size(config: &Descriptor, layers: &[Layer]) -> u64 {
    layers.iter().fold(config.size, |sum, layer| sum.saturating_add(layer.blob.size))
}

/// Compressed blobs and uncompressed digests come in two lists of the same order.
pub(crate) fn pair_layers(blobs: &[Descriptor], config: &ImageConfig) -> Result<Vec<Layer>, PullError> {
    if blobs.len() != config.rootfs.diff_ids.len() {
        return Err(PullError::Content(format!(
            "the manifest has {} layers, the configuration {}",
            blobs.len(),
            config.rootfs.diff_ids.len()
        )));
    }
    let layers: Vec<Layer> = blobs
        .iter()
        .zip(&config.rootfs.diff_ids)
        .map(|(blob, diff_id)| Layer { diff_id: diff_id.clone(), blob: blob.clone() })
        .collect();
    match layers.iter().find(|l| !is_sha256(&l.diff_id) || !is_sha256(&l.blob.digest)) {
        Some(layer) => Err(PullError::Content(format!("bad layer digest {:?}", layer.diff_id))),
        None => Ok(layers),
    }
}

/// Brings a blob into the store, resuming what an earlier attempt left.
async fn fetch(store: &ImageStore, registry: &Registry, blob: &Descriptor) -> Result<(), PullError> {
    if !is_sha256(&blob.digest) {
        return Err(PullError::Content(format!("bad digest {:?}", blob.digest)));
    }
    let lock = store.lock_of(&blob.digest);
    let _alone = lock.lock().await;
    // One that is shorter is what a machine kept that lost power before the content was on the disk.
    if let Ok(there) = tokio::fs::metadata(store.blob_path(&blob.digest)).await
        && there.len() >= blob.size
    {
        return check_length(blob, there.len());
    }
    let partial = store.ingest_path(&blob.digest);
    let mut attempt = 0;
    loop {
        attempt += 1;
        match download(registry, blob, &partial).await {
            Ok(()) => break,
            Err(error @ PullError::Unreachable(_)) if attempt < BLOB_ATTEMPTS => {
                tracing::debug!(digest = blob.digest, %error, attempt, "resuming");
            }
            Err(error) => return Err(error),
        }
    }
    tokio::fs::rename(&partial, store.blob_path(&blob.digest)).await.map_err(io_error("storing a blob"))
}

async fn download(registry: &Registry, blob: &Descriptor, partial: &PathBuf) -> Result<(), PullError> {
    let mut have = tokio::fs::metadata(partial).await.map_or(0, |m| m.len());
    if have > blob.size {
        have = 0;
    }
    let mut hash = Sha256::new();
    let mut file = tokio::fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(have == 0)
        .open(partial)
        .await
        .map_err(io_error("creating a download"))?;
    if have < blob.size || have == 0 {
        let response = registry.blob(&blob.digest, have).await?;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            have = 0;
        }
        if have > 0 {
            hash_file(&mut hash, partial).await?;
        }
        file.set_len(have).await.map_err(io_error("downloading"))?;
        tokio::io::AsyncSeekExt::seek(&mut file, io::SeekFrom::Start(have)).await.map_err(io_error("downloading"))?;
        let mut body = response.into_body();
        while let Some(chunk) = next_chunk(&mut body).await? {
            have += chunk.len() as u64;
            if have > blob.size {
                drop(file);
                let _ = tokio::fs::remove_file(partial).await;
                return Err(PullError::Content(format!("blob {} is larger than promised", blob.digest)));
            }
            hash.update(&chunk);
            file.write_all(&chunk).await.map_err(io_error("downloading"))?;
        }
        file.flush().await.map_err(io_error("downloading"))?;
        if have < blob.size {
            return Err(PullError::Unreachable(format!("blob {} ended early", blob.digest)));
        }
    } else {
        hash_file(&mut hash, partial).await?;
    }
    let digest = format!("sha256:{}", api::hex::encode(hash.finalize()));
    if digest != blob.digest {
        let _ = tokio::fs::remove_file(partial).await;
        return Err(PullError::Content(format!("blob {} has digest {digest}", blob.digest)));
    }
    Ok(())
}

async fn hash_file(hash: &mut Sha256, path: &Path) -> Result<(), PullError> {
    let path = path.to_path_buf();
    let bytes = tokio::task::spawn_blocking(move || -> io::Result<Sha256> {
        let mut hash = Sha256::new();
        io::copy(&mut std::fs::File::open(path)?, &mut hash)?;
        Ok(hash)
    });
    *hash = bytes.await.map_err(|e| PullError::Content(e.to_string()))?.map_err(io_error("reading a download"))?;
    Ok(())
}

/// Unpacks a layer once, whoever asks at the same time; its digest must be what the configuration promises.
pub(crate) async fn unpack_layer(store: &Arc<ImageStore>, layer: &Layer) -> Result<(), PullError> {
    let lock = store.lock_of(&layer.diff_id);
    let alone = lock.lock_owned().await;
    let target = store.layer_path(&layer.diff_id);
    if target.exists() {
        return Ok(());
    }
    let (blob, expected) = (store.blob_path(&layer.blob.digest), layer.diff_id.clone());
    // Another process may be at the same layer.
    let temporary = target.with_extension(format!("unpacking-{}", std::process::id()));
    let unpacker = store.unpacker.clone();
    let lease = store.lease().await.map_err(|error| PullError::Content(error.to_string()))?;
    let mut claim = store.claim();
    claim.layer(layer);
    let work = tokio::task::spawn_blocking(move || {
        // Held to the end of the work, which goes on when nobody waits for it any more.
        let _held = (alone, lease, claim);
        let _ = files::remove_tree(&temporary);
        std::fs::create_dir(&temporary).map_err(io_error("creating a layer"))?;
        let unpacked = match &unpacker {
            Some(starter) => starter.unpack(&blob, &temporary),
            None => unpack::unpack(&blob, &temporary),
        };
        let result = unpacked.map_err(io_error("unpacking a layer")).and_then(|found| {
            if found == expected {
                match std::fs::rename(&temporary, &target) {
                    Err(error) if !target.exists() => Err(io_error("storing a layer")(error)),
                    Err(_) => files::remove_tree(&temporary).map_err(io_error("removing a second copy")),
                    Ok(()) => Ok(()),
                }
            } else {
                Err(PullError::Content(format!("layer {expected} unpacks to {found}")))
            }
        });
        if result.is_err() {
            let _ = files::remove_tree(&temporary);
        }
        result
    });
    work.await.unwrap_or_else(|error| Err(PullError::Content(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::config::RootFs;

    #[test]
    fn security_images_are_refused_by_what_their_manifest_says() {
        let of = |size| Descriptor { size, ..Default::default() };
        for (config, layers, expected) in [
            (of(5000), vec![of(1 << 30); 127], None),
            (of(9 << 20), vec![], Some("its configuration has")),
            (of(u64::MAX), vec![], Some("its configuration has")),
            (of(1), vec![of(1); 501], Some("it has 501 layers")),
            (of(1), vec![of(u64::MAX)], Some("layer  has")),
        ] {
            let refused = check_sizes(&config, &layers).err().map(|error| error.to_string());
            assert_eq!(refused.is_some(), expected.is_some(), "{refused:?}");
            assert!(expected.is_none_or(|part| refused.as_ref().unwrap().contains(part)), "{refused:?}");
        }
        let layer = Layer { diff_id: String::new(), blob: of(u64::MAX) };
        assert_eq!(total_size(&of(u64::MAX), &[layer.clone(), layer]), u64::MAX);
    }

    #[test]
    fn the_loopback_of_the_node_is_asked_first() {
        let runtime = |name| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).thread_name(name).build().unwrap()
        };
        let (here, elsewhere) = (runtime("here"), runtime("elsewhere"));
        for (name, answers_here, expected) in [
            ("localhost:5000/a", true, &["here"][..]),
            ("localhost:5000/a", false, &["here", "elsewhere"]),
            ("registry.example/a", true, &["elsewhere"]),
        ] {
            let asked = Arc::new(parking_lot::Mutex::new(Vec::new()));
            let seen = asked.clone();
            let pull = move || {
                let asked = asked.clone();
                async move {
                    let place = std::thread::current().name().unwrap_or_default().to_owned();
                    let answers = answers_here || place == "elsewhere";
                    asked.lock().push(place);
                    Err(if answers { PullError::NotFound("a".into()) } else { PullError::Unreachable("a".into()) })
                }
            };
            let elsewhere = elsewhere.handle().clone();
            let pulled = here.spawn(async move { pull_through(Some(&elsewhere), name, pull).await });
            assert!(matches!(here.block_on(pulled).unwrap(), Err(PullError::NotFound(_))), "{name}");
            assert_eq!(*seen.lock(), expected, "{name}");
        }
    }

    #[test]
    fn security_a_digest_of_any_kind_is_never_taken_for_a_tag() {
        for (asked, expected) in [("latest", false), ("sha256:a", false), ("sha256:b", true), ("sha512:a", true)] {
            assert_eq!(is_another(asked, "sha256:a"), expected, "{asked}");
        }
    }

    #[tokio::test]
    async fn a_blob_that_is_there_in_part_is_fetched_again() {
        use tokio::io::AsyncReadExt;
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(ImageStore::open(directory.path()).unwrap());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let image = format!("{}/a:b", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut request, mut buffer) = (String::new(), [0; 4096]);
            while !request.contains("\r\n\r\n") {
                let read = stream.read(&mut buffer).await.unwrap();
                request.push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\ncontent").await.unwrap();
        });
        let endpoint = Mirrors::default().endpoints(&image.parse().unwrap()).unwrap().remove(0);
        let registry = Registry::new(endpoint, None).unwrap();
        let digest = format!("sha256:{}", api::hex::encode(Sha256::digest(b"content")));
        let blob = Descriptor { digest: digest.clone(), size: 7, ..Default::default() };
        std::fs::write(store.blob_path(&digest), "").unwrap();
        fetch(&store, &registry, &blob).await.unwrap();
        assert_eq!(std::fs::read(store.blob_path(&digest)).unwrap(), b"content");
    }

    /// The layer of one image is not read as the configuration of another, which promises to be small.
    #[tokio::test]
    async fn security_a_blob_that_is_there_is_as_long_as_promised() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(ImageStore::open(directory.path()).unwrap());
        let mirrors = Mirrors::default();
        let endpoint = mirrors.endpoints(&"127.0.0.1:1/a:b".parse().unwrap()).unwrap().remove(0);
        let registry = Registry::new(endpoint, None).unwrap();
        let digest = format!("sha256:{}", "1".repeat(64));
        std::fs::write(store.blob_path(&digest), [0; 20]).unwrap();
        for (size, is_fine) in [(20, true), (10, false), (30, false)] {
            let blob = Descriptor { digest: digest.clone(), size, ..Default::default() };
            assert_eq!(fetch(&store, &registry, &blob).await.is_ok(), is_fine, "{size}");
        }
    }

    /// What a manifest calls a digest becomes part of paths of the node and of requests to registries (CVE-2024-3727).
    #[tokio::test]
    async fn security_digests_are_no_paths() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(ImageStore::open(directory.path()).unwrap());
        let mirrors = Mirrors::default();
        let endpoint = mirrors.endpoints(&"127.0.0.1:1/a:b".parse().unwrap()).unwrap().remove(0);
        let registry = Registry::new(endpoint, None).unwrap();
        let good = format!("sha256:{}", "1".repeat(64));
        let below = format!("{good}/../../x");
        let of = |digest: &str| Descriptor { digest: digest.to_owned(), size: 1, ..Default::default() };
        for bad in ["", "sha256:", "sha256:../../../x", "../../b/manifests/c", "sha512:1", below.as_str()] {
            let refused = fetch(&store, &registry, &of(bad)).await;
            assert!(
                matches!(&refused, Err(PullError::Content(why)) if why.contains("bad digest")),
                "{bad}: {refused:?}"
            );
            for (blob, diff_id) in [(bad, good.as_str()), (good.as_str(), bad)] {
                let rootfs = RootFs { diff_ids: vec![diff_id.to_owned()] };
                assert!(pair_layers(&[of(blob)], &ImageConfig { rootfs, ..Default::default() }).is_err(), "{bad}");
            }
        }
        let rootfs = RootFs { diff_ids: vec![good.clone()] };
        assert!(pair_layers(&[of(&good)], &ImageConfig { rootfs, ..Default::default() }).is_ok());
    }

    #[tokio::test]
    async fn a_blob_that_a_power_cut_emptied_is_fetched_again() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(ImageStore::open(directory.path()).unwrap());
        // Bound, and nobody listens.
        let nobody = tokio::net::TcpSocket::new_v4().unwrap();
        nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let reference = format!("{}/a:b", nobody.local_addr().unwrap()).parse().unwrap();
        let registry = Registry::new(Mirrors::default().endpoints(&reference).unwrap().remove(0), None).unwrap();
        let blob = Descriptor { digest: format!("sha256:{}", "1".repeat(64)), size: 20, ..Default::default() };
        std::fs::write(store.blob_path(&blob.digest), "").unwrap();
        let asked = fetch(&store, &registry, &blob).await;
        assert!(matches!(asked, Err(PullError::Unreachable(_))), "{asked:?}");
    }
}
