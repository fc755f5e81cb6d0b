//! The image store: which images there are, their blobs and their unpacked layers.
//!
//! On disk: `blobs/sha256/<hex>` (as fetched), `layers/<first 32 digits of the diff id>` (unpacked, ready for overlayfs),
//! `images/<hex of id>.json` (one record per image), `ingest/` (unfinished downloads, resumed). A name is an entry in the
//! record of exactly one image: tagging moves it.
//!
//! Several processes may use one store (the runtime and `cox image`): records are read again when their directory has
//! changed, and nothing is collected while another process holds a [`ImageStore::lease`], as every pull and import does. What
//! the runtime's own pulls need they claim by name ([`Claim`]), so that one that never ends does not keep it from collecting.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Reference;
use super::config::{Descriptor, ExecutionConfig};
use crate::blocking::blocking;
use crate::error::{Error, Result, doing};
use crate::record;
use crate::shim::starter::Starter;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Image {
    /// Digest of the configuration: `sha256:…`.
    pub(crate) id: String,
    pub(crate) manifest: Option<Descriptor>,
    pub(crate) config_descriptor: Descriptor,
    pub(crate) tags: Vec<String>,
    pub(crate) digests: Vec<String>,
    /// Bottom first.
    pub(crate) layers: Vec<Layer>,
    pub(crate) config: ExecutionConfig,
    pub(crate) size: u64,
    pub(crate) pinned: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Layer {
    pub(crate) diff_id: String,
    pub(crate) blob: Descriptor,
}

impl Image {
    /// Directory names for overlayfs, topmost first.
    pub(crate) fn lower(&self) -> Vec<String> {
        match self.layers.is_empty() {
            true => vec![EMPTY_LAYER.into()],
            false => self.layers.iter().rev().map(|l| layer_name(&l.diff_id)).collect(),
        }
    }

    /// What pods show as their imageID.
    pub(crate) fn reference(&self) -> String {
        self.digests.first().cloned().unwrap_or_else(|| self.id.clone())
    }
}

/// Stands under images that have no layer at all.
const EMPTY_LAYER: &str = "empty";

/// Half a digest keeps mount options short; [`namesakes`] have no room beside each other.
pub(crate) fn layer_name(diff_id: &str) -> String {
    diff_id.trim_start_matches("sha256:").chars().take(32).collect()
}

/// A layer that would be unpacked where another one is. Nobody finds a second layer to one that is there; but whoever makes both,
/// with patience, could show one and have the other run.
fn namesakes<'a>(new: &'a [Layer], mut known: impl Iterator<Item = &'a Layer>) -> Option<(&'a str, &'a str)> {
    let new: HashMap<String, &str> =
        new.iter().map(|layer| (layer_name(&layer.diff_id), layer.diff_id.as_str())).collect();
    known.find_map(|layer| {
        let wanted = *new.get(&layer_name(&layer.diff_id))?;
        (wanted != layer.diff_id).then_some((wanted, layer.diff_id.as_str()))
    })
}

/// The records as last read.
#[derive(Default)]
struct Records {
    images: BTreeMap<String, Arc<Image>>,
    /// When the directory had last changed by then.
    changed: Option<SystemTime>,
}

pub(crate) struct ImageStore {
    root: PathBuf,
    images: Mutex<Records>,
    /// Who unpacks layers, if not this process.
    pub(crate) unpacker: Option<Arc<Starter>>,
    /// One fetch per blob and one unpacking per layer at a time, whoever asks.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// What pulls of this process need, by name of the blob or layer, and how many do.
    claims: Mutex<HashMap<String, usize>>,
}

/// Who brings blobs and layers in claims them first: until it is dropped, they are no garbage.
pub(crate) struct Claim {
    store: Arc<ImageStore>,
    names: Vec<String>,
}

impl Claim {
    /// A blob, fetched or being fetched.
    pub(crate) fn blob(&mut self, digest: &str) {
        self.add(blob_name(digest).to_owned());
    }

    /// An image, with what it is made of. None if there is no such image; one that is claimed keeps its layers, even if it is removed
    /// meanwhile.
    pub(crate) fn image(&mut self, name: &str) -> Option<Arc<Image>> {
        let store = self.store.clone();
        // While this is held nobody collects.
        let mut records = store.images.lock();
        store.current(&mut records);
        let image = find(&records.images, name)?;
        image.layers.iter().for_each(|layer| self.layer(layer));
        Some(image)
    }

    /// An unpacked layer, and the blob that it comes from.
    pub(crate) fn layer(&mut self, layer: &Layer) {
        self.blob(&layer.blob.digest);
        self.add(layer_name(&layer.diff_id));
    }

    fn add(&mut self, name: String) {
        *self.store.claims.lock().entry(name.clone()).or_default() += 1;
        self.names.push(name);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.store.claims.lock();
        for name in &self.names {
            match claims.get_mut(name) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(claims.remove(name)),
            }
        }
    }
}

/// Held by who brings something in, so that other processes collect nothing meanwhile.
pub(crate) struct Lease(#[expect(dead_code, reason = "holding them is the point")] Vec<Locked>);

/// A lock on a file, until this is dropped. A child that is being started has the file open as well for a moment, so that closing
/// it here would not be enough.
struct Locked(fs::File);

impl Locked {
    /// Waits until nobody has it alone.
    fn shared(path: &Path) -> std::io::Result<Self> {
        let file = fs::File::create(path)?;
        file.lock_shared()?;
        Ok(Self(file))
    }

    /// None if anybody has it.
    fn alone(path: &Path) -> std::io::Result<Option<Self>> {
        let file = fs::File::create(path)?;
        Ok(file.try_lock().is_ok().then(|| Self(file)))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "image store not unlocked");
        }
    }
}

/// Says which layers containers stand on.
pub(crate) type UsedLayers<'a> = &'a dyn Fn() -> std::io::Result<HashSet<String>>;

/// How long what no image has yet is kept for a pull that is tried again.
const PARTIAL_TTL: Duration = Duration::from_secs(15 * 60);
/// Held shared by everyone who brings something in, and by all but the runtime.
const LEASES: &str = "collect.lock";
const LEASES_OF_OTHERS: &str = "others.lock";

/// By id (or a unique beginning of one), name or digest.
fn find(images: &BTreeMap<String, Arc<Image>>, name: &str) -> Option<Arc<Image>> {
    if let Some(image) = images.get(name).or_else(|| images.get(&format!("sha256:{name}"))) {
        return Some(image.clone());
    }
    if let Ok(reference) = name.parse::<Reference>() {
        let (tag, digest) = (reference.tagged(), reference.digest.as_ref().map(|d| reference.with_digest(d)));
        let found = images.values().find(|i| match (&digest, &tag) {
            (Some(digest), _) => i.digests.contains(digest),
            (None, Some(tag)) => i.tags.contains(tag),
            (None, None) => false,
        });
        if let Some(image) = found {
            return Some(image.clone());
        }
    }
    let prefix = name.trim_start_matches("sha256:");
    if prefix.len() < 6 || !prefix.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut matches = images.values().filter(|i| i.id["sha256:".len()..].starts_with(prefix));
    match (matches.next(), matches.next()) {
        (Some(image), None) => Some(image.clone()),
        _ => None,
    }
}

/// However deep images have made them.
fn remove_all(layers: &[PathBuf]) -> Result<()> {
    layers.iter().try_for_each(|layer| files::remove_tree(layer).map_err(doing("removing a layer")))
}

/// How the names of files begin that are read from an archive.
pub(super) const IMPORTED: &str = "import-";

/// By when it was last changed in any way, which images have no say in.
fn has_age(found: &fs::Metadata, age: Duration) -> bool {
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(found.ctime()).unwrap_or(0));
    age.is_zero() || changed.elapsed().is_ok_and(|since| since >= age)
}

fn blob_name(digest: &str) -> &str {
    digest.trim_start_matches("sha256:")
}

impl ImageStore {
    pub(crate) fn open(root: &Path) -> Result<Self> {
        for directory in ["blobs/sha256", "layers", "images", "ingest"] {
            let path = root.join(directory);
            record::private_directory(&path).map_err(doing(format!("creating {}", path.display())))?;
        }
        let empty = root.join("layers").join(EMPTY_LAYER);
        fs::create_dir_all(&empty).map_err(doing(format!("creating {}", empty.display())))?;
        let (locks, claims) = (Mutex::default(), Mutex::default());
        let store = Self { root: root.to_path_buf(), images: Mutex::default(), unpacker: None, locks, claims };
        store.current(&mut store.images.lock());
        store.remove_leftovers();
        Ok(store)
    }

    /// The same store, whose layers are unpacked by processes of their own.
    pub(crate) fn unpacked_by(self, starter: &Arc<Starter>) -> Self {
        Self { unpacker: Some(starter.clone()), ..self }
    }

    /// Brings `records` up to what is on disk, if another process changed it. Says whether they are all of them now.
    fn current(&self, records: &mut Records) -> bool {
        let directory = self.root.join("images");
        let read = || -> std::io::Result<Option<Records>> {
            let changed = fs::metadata(&directory)?.modified().ok();
            if changed.is_some() && changed == records.changed {
                return Ok(None);
            }
            let mut images = BTreeMap::new();
            for entry in fs::read_dir(&directory)? {
                let path = entry?.path();
                if path.extension().is_none_or(|extension| extension != "json") {
                    continue;
                }
                match record::read::<Image>(&path) {
                    Ok(image) => drop(images.insert(image.id.clone(), Arc::new(image))),
                    // Removed by another process since it was listed.
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                        tracing::warn!(%error, "image record is broken; the image has to be pulled again");
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(Some(Records { changed, images }))
        };
        match read() {
            Ok(Some(fresh)) => *records = fresh,
            Ok(None) => {}
            // What was known stays. Nothing is garbage meanwhile: who may have it is not known.
            Err(error) => {
                tracing::warn!(%error, path = %directory.display(), "image records not read");
                return false;
            }
        }
        true
    }

    /// While held, other processes collect nothing: what a pull has brought in is not yet named by any record.
    pub(crate) async fn lease(&self) -> Result<Lease> {
        let others = (!self.is_runtime()).then_some(LEASES_OF_OTHERS);
        let paths: Vec<PathBuf> = [LEASES].into_iter().chain(others).map(|name| self.root.join(name)).collect();
        blocking(move || {
            let locked = paths.iter().map(|path| Locked::shared(path));
            locked.collect::<std::io::Result<Vec<_>>>().map(Lease)
        })
        .await
        .map_err(doing("locking the image store"))
    }

    pub(crate) fn claim(self: &Arc<Self>) -> Claim {
        Claim { store: self.clone(), names: Vec::new() }
    }

    /// What must be held to fetch this blob or unpack this layer.
    pub(crate) fn lock_of(&self, digest: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock();
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        locks.entry(digest.to_owned()).or_default().clone()
    }

    /// One process of those that use a store has layers unpacked by others.
    fn is_runtime(&self) -> bool {
        self.unpacker.is_some()
    }

    pub(crate) fn layers_directory(&self) -> PathBuf {
        self.root.join("layers")
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn blob_path(&self, digest: &str) -> PathBuf {
        self.root.join("blobs/sha256").join(blob_name(digest))
    }

    pub(crate) fn ingest_path(&self, digest: &str) -> PathBuf {
        self.root.join("ingest").join(blob_name(digest))
    }

    pub(crate) fn layer_path(&self, diff_id: &str) -> PathBuf {
        self.layers_directory().join(layer_name(diff_id))
    }

    /// By id (or a unique beginning of one), name or digest.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Image>> {
        let mut records = self.images.lock();
        self.current(&mut records);
        find(&records.images, name)
    }

    pub(crate) fn list(&self) -> Vec<Arc<Image>> {
        let mut records = self.images.lock();
        self.current(&mut records);
        records.images.values().cloned().collect()
    }

    /// Adds an image, or names to one that is there; a tag leaves the image that had it.
    pub(crate) fn put(&self, mut image: Image) -> Result<Arc<Image>> {
        let mut records = self.images.lock();
        self.current(&mut records);
        let images = &mut records.images;
        let known = images.values().flat_map(|image| &image.layers).chain(&image.layers);
        if let Some((new, old)) = namesakes(&image.layers, known) {
            let message = format!("image {}: layer {new} has the directory of {old}", image.id);
            return Err(Error::Invalid(message));
        }
        if let Some(old) = images.get(&image.id) {
            let merge = |new: &mut Vec<String>, old: &[String]| {
                for name in old {
                    if !new.contains(name) {
                        new.push(name.clone());
                    }
                }
            };
            merge(&mut image.tags, &old.tags);
            merge(&mut image.digests, &old.digests);
            image.pinned |= old.pinned;
        }
        let losers: Vec<Image> = images
            .values()
            .filter(|other| other.id != image.id && other.tags.iter().any(|t| image.tags.contains(t)))
            .map(|other| {
                let mut other = Image::clone(other);
                other.tags.retain(|t| !image.tags.contains(t));
                other
            })
            .collect();
        for image in losers.into_iter().chain([image.clone()]) {
            let path = self.record_path(&image.id);
            record::write(&path, &image).map_err(doing(format!("writing {}", path.display())))?;
            images.insert(image.id.clone(), Arc::new(image));
        }
        Ok(Arc::new(image))
    }

    /// Forgets an image; its layers and blobs go too unless another image or one of `used_layers` needs them.
    pub(crate) fn remove(&self, id: &str, used_layers: UsedLayers<'_>) -> Result<()> {
        let mut records = self.images.lock();
        let in_use = self.in_use(used_layers)?;
        let are_known = self.current(&mut records);
        let images = &mut records.images;
        if images.remove(id).is_none() {
            return Ok(());
        }
        let path = self.record_path(id);
        fs::remove_file(&path).map_err(doing(format!("removing {}", path.display())))?;
        if !are_known {
            return Ok(());
        }
        let garbage = self.collect(images, &in_use, Duration::ZERO)?;
        drop(records);
        remove_all(&garbage)
    }

    /// Removes what pulls that failed have left, after a while.
    pub(crate) fn sweep(&self, used_layers: UsedLayers<'_>) -> Result<()> {
        let mut records = self.images.lock();
        let in_use = self.in_use(used_layers)?;
        if !self.current(&mut records) {
            return Ok(());
        }
        let garbage = self.collect(&records.images, &in_use, PARTIAL_TTL)?;
        drop(records);
        remove_all(&garbage)
    }

    /// Removes one name; the image itself goes with its last.
    pub(crate) fn untag(&self, name: &str, used_layers: UsedLayers<'_>) -> Result<bool> {
        let Some(image) = self.get(name) else { return Ok(false) };
        let reference: Option<Reference> = name.parse().ok();
        let tag = reference.and_then(|r| r.tagged());
        match tag.filter(|t| image.tags.contains(t) && image.tags.len() > 1) {
            Some(tag) => {
                let mut changed = Image::clone(&image);
                changed.tags.retain(|t| *t != tag);
                let path = self.record_path(&image.id);
                record::write(&path, &changed).map_err(doing(format!("writing {}", path.display())))?;
                self.images.lock().images.insert(changed.id.clone(), Arc::new(changed));
            }
            None => self.remove(&image.id, used_layers)?,
        }
        Ok(true)
    }

    /// What containers have and what is claimed. Asked while images are locked, so that no container can be begun with an image that
    /// goes; claims first, since who lets go of one meanwhile has a container by then.
    fn in_use(&self, used_layers: UsedLayers<'_>) -> Result<HashSet<String>> {
        let mut names: HashSet<String> = self.claims.lock().keys().cloned().collect();
        names.extend(used_layers().map_err(doing("finding the layers in use"))?);
        Ok(names)
    }

    /// Does away with what no image has, if it is older than that. Returns layers that are out of the way and still to be
    /// removed, which may take long.
    fn collect(
        &self,
        images: &BTreeMap<String, Arc<Image>>,
        used_layers: &HashSet<String>,
        older_than: Duration,
    ) -> Result<Vec<PathBuf>> {
        let lock = if self.is_runtime() { LEASES_OF_OTHERS } else { LEASES };
        let alone = Locked::alone(&self.root.join(lock)).map_err(doing("locking the image store"))?;
        let Some(_alone) = alone else {
            // Another process is pulling. What is garbage now is still garbage at the next removal.
            return Ok(Vec::new());
        };
        let mut aside = Vec::new();
        let mut layers: HashSet<String> = used_layers.clone();
        layers.insert(EMPTY_LAYER.into());
        let mut blobs: HashSet<&str> = HashSet::new();
        for image in images.values() {
            layers.extend(image.layers.iter().map(|l| layer_name(&l.diff_id)));
            blobs.extend(image.layers.iter().map(|l| blob_name(&l.blob.digest)));
            blobs.insert(blob_name(&image.config_descriptor.digest));
            blobs.extend(image.manifest.as_ref().map(|m| blob_name(&m.digest)));
        }
        let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
        let name_of = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let is_old = |entry: &fs::DirEntry| entry.metadata().is_ok_and(|found| has_age(&found, older_than));
        for entry in entries(self.layers_directory()) {
            let name = name_of(&entry);
            // Names with a dot are layers being unpacked.
            if layers.contains(&name) || name.contains('.') || !is_old(&entry) {
                continue;
            }
            // A name like those of layers that were not unpacked to their end: what is left of it goes at the next start.
            let id = record::new_id().map_err(doing("removing a layer"))?;
            let place = self.layers_directory().join(format!("{name}.unpacking-{id}"));
            if self.discard(&name, || fs::rename(entry.path(), &place)).map_err(doing("removing a layer"))? {
                aside.push(place);
            }
        }
        for directory in ["blobs/sha256", "ingest"] {
            for entry in entries(self.root.join(directory)) {
                let name = name_of(&entry);
                if !blobs.contains(name.as_str()) && !name.starts_with(IMPORTED) && is_old(&entry) {
                    self.discard(&name, || fs::remove_file(entry.path())).map_err(doing("removing a blob"))?;
                }
            }
        }
        Ok(aside)
    }

    /// Does away with a blob or layer unless somebody has claimed it, and nobody can meanwhile.
    fn discard(&self, name: &str, how: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<bool> {
        let claims = self.claims.lock();
        match claims.contains_key(name) {
            true => Ok(false),
            false => match how() {
                // Another process that collects was faster.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
                done => done.map(|()| true),
            },
        }
    }

    /// Half-unpacked layers and files of processes that died, unless one that lives is at work right now.
    fn remove_leftovers(&self) {
        let Ok(Some(_alone)) = Locked::alone(&self.root.join(LEASES)) else { return };
        let is_leftover = |name: &str| name.contains(".unpacking") || name.starts_with(IMPORTED);
        for directory in [self.layers_directory(), self.root.join("ingest")] {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let path = entry.path();
                let removed = match is_leftover(&entry.file_name().to_string_lossy()) {
                    true => files::remove_tree(&path),
                    false => Ok(()),
                };
                if let Err(error) = removed {
                    tracing::warn!(%error, path = %path.display(), "cannot remove a leftover");
                }
            }
        }
    }

    fn record_path(&self, id: &str) -> PathBuf {
        self.root.join("images").join(format!("{}.json", id.trim_start_matches("sha256:")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> std::io::Result<HashSet<String>> {
        Ok(HashSet::new())
    }

    fn image(id: char, tag: &str) -> Image {
        Image {
            id: format!("sha256:{}", id.to_string().repeat(64)),
            tags: vec![format!("docker.io/library/{tag}")],
            layers: vec![Layer { diff_id: format!("sha256:{}", "c".repeat(64)), ..Default::default() }],
            ..Default::default()
        }
    }

    #[test]
    fn a_tag_belongs_to_one_image() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::open(directory.path()).unwrap();
        store.put(image('a', "x:1")).unwrap();
        store.put(image('b', "x:1")).unwrap();
        assert_eq!(store.get("x:1").unwrap().id, image('b', "x:1").id);
        assert!(store.get(&"a".repeat(64)).unwrap().tags.is_empty());
        // The same after a restart.
        let store = ImageStore::open(directory.path()).unwrap();
        assert_eq!(store.get("x:1").unwrap().id, image('b', "x:1").id);
        assert_eq!(store.list().len(), 2);
    }

    #[test]
    fn security_layers_with_half_a_digest_in_common_are_not_taken_for_each_other() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::open(directory.path()).unwrap();
        let other = Layer { diff_id: format!("sha256:{}{}", "c".repeat(32), "d".repeat(32)), ..Default::default() };
        let mut both = image('a', "x:1");
        both.layers.push(other.clone());
        assert!(store.put(both).is_err(), "within one image");
        store.put(image('a', "x:1")).unwrap();
        // The same again, and an image that shares the layer.
        store.put(image('a', "x:2")).unwrap();
        store.put(image('b', "y:1")).unwrap();
        let error = store.put(Image { layers: vec![other], ..image('e', "z:1") }).unwrap_err().to_string();
        assert!(error.contains("has the directory of sha256:cccc"), "{error}");
        assert!(store.get("z:1").is_none());
    }

    #[test]
    fn what_images_have_whose_records_cannot_be_read_is_no_garbage() {
        let directory = tempfile::tempdir().unwrap();
        let unreadable = directory.path().join("images/other.json");
        fs::create_dir_all(&unreadable).unwrap();
        let store = ImageStore::open(directory.path()).unwrap();
        let layer = store.layer_path(&image('a', "x:1").layers[0].diff_id);
        fs::create_dir(&layer).unwrap();
        store.put(image('a', "x:1")).unwrap();
        store.remove(&image('a', "x:1").id, &none).unwrap();
        assert!(layer.exists(), "it may be the other's");
        fs::remove_dir(&unreadable).unwrap();
        store.put(image('b', "y:1")).unwrap();
        store.remove(&image('b', "y:1").id, &none).unwrap();
        assert!(!layer.exists());
    }

    #[test]
    fn security_layers_are_for_root_whoever_made_their_directory() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let layers = directory.path().join("layers");
        fs::create_dir(&layers).unwrap();
        fs::set_permissions(&layers, fs::Permissions::from_mode(0o755)).unwrap();
        ImageStore::open(directory.path()).unwrap();
        for directory in [layers, directory.path().join("blobs/sha256"), directory.path().join("ingest")] {
            let mode = fs::metadata(&directory).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, 0o700, "{}", directory.display());
        }
    }

    /// A layer may be deeper than a stack: its paths may lead over links. It was unpacked when the runtime was ended, or its
    /// image is removed; neither may end the runtime.
    #[test]
    fn security_layers_are_removed_however_deep_they_are() {
        use std::os::fd::AsFd;
        let deep = |path: &Path| {
            fs::create_dir(path).unwrap();
            let mut at = std::os::fd::OwnedFd::from(fs::File::open(path).unwrap());
            for _ in 0..10_000 {
                crate::sys::mkdir_at(at.as_fd(), c"d", 0o755).unwrap();
                at = crate::sys::open_at(at.as_fd(), c"d", libc::O_PATH | libc::O_DIRECTORY, 0).unwrap();
            }
        };
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("layers")).unwrap();
        let leftover = directory.path().join("layers/c.unpacking-1");
        deep(&leftover);
        let store = ImageStore::open(directory.path()).unwrap();
        assert!(!leftover.exists());
        let image = store.put(image('a', "x:1")).unwrap();
        let layer = store.layer_path(&image.layers[0].diff_id);
        deep(&layer);
        store.remove(&image.id, &none).unwrap();
        assert!(!layer.exists());
    }

    #[test]
    fn a_lock_ends_with_its_holder() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(LEASES);
        let held = Locked::shared(&path).unwrap();
        assert!(Locked::alone(&path).unwrap().is_none());
        // As a child has it that is being started.
        let _copy = held.0.try_clone().unwrap();
        drop(held);
        assert!(Locked::alone(&path).unwrap().is_some());
    }

    /// A pull that goes on for ever, from a registry that sends a byte now and then, does not keep the disk full.
    #[test]
    fn security_a_pull_that_never_ends_keeps_only_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let starter = Arc::new(Starter::new(fs::File::open("/dev/null").unwrap().into()));
        let store = Arc::new(ImageStore::open(directory.path()).unwrap().unpacked_by(&starter));
        let endless = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(store.lease()).unwrap();
        let digest = |letter: &str| format!("sha256:{}", letter.repeat(64));
        let mut claim = store.claim();
        claim.layer(&Layer { diff_id: digest("d"), blob: Descriptor { digest: digest("e"), ..Default::default() } });
        let image = store.put(image('a', "x:1")).unwrap();
        for name in ["c", "d"] {
            fs::create_dir(store.layer_path(&digest(name))).unwrap();
        }
        // Of pulls that have failed, and of the one that goes on.
        for path in [store.blob_path(&digest("f")), store.ingest_path(&digest("1")), store.ingest_path(&digest("e"))] {
            fs::write(path, "x").unwrap();
        }
        store.sweep(&none).unwrap();
        assert!(store.ingest_path(&digest("1")).exists(), "it may be gone on with");
        store.remove(&image.id, &none).unwrap();
        assert!(store.layer_path(&digest("d")).exists() && store.ingest_path(&digest("e")).exists());
        for gone in [store.layer_path(&digest("c")), store.blob_path(&digest("f")), store.ingest_path(&digest("1"))] {
            assert!(!gone.exists(), "{}", gone.display());
        }
        drop((claim, endless));
        store.collect(&BTreeMap::new(), &HashSet::new(), Duration::ZERO).unwrap();
        assert!(!store.layer_path(&digest("d")).exists() && !store.ingest_path(&digest("e")).exists());
        // Another process that brings something in has everybody else wait.
        fs::create_dir(store.layer_path(&digest("d"))).unwrap();
        let other = ImageStore::open(directory.path()).unwrap();
        let held = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(other.lease()).unwrap();
        store.collect(&BTreeMap::new(), &HashSet::new(), Duration::ZERO).unwrap();
        assert!(store.layer_path(&digest("d")).exists());
        drop(held);
        for digit in 0..1000 {
            drop(store.lock_of(&format!("sha256:{digit}")));
        }
        assert!(store.locks.lock().len() <= 1, "those who are gone leave nothing behind");
    }

    #[test]
    fn layers_go_with_their_last_user() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::open(directory.path()).unwrap();
        let (a, b) = (store.put(image('a', "x:1")).unwrap(), store.put(image('b', "y:1")).unwrap());
        let layer = store.layer_path(&a.layers[0].diff_id);
        fs::create_dir(&layer).unwrap();
        store.remove(&a.id, &none).unwrap();
        assert!(layer.exists());
        let used = || Ok(HashSet::from([layer_name(&b.layers[0].diff_id)]));
        store.remove(&b.id, &used).unwrap();
        assert!(layer.exists(), "a container still uses it");
    }

    #[test]
    fn security_layers_stay_while_a_container_is_made_of_them() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(ImageStore::open(directory.path()).unwrap());
        let image = store.put(image('a', "x:1")).unwrap();
        let layer = store.layer_path(&image.layers[0].diff_id);
        fs::create_dir(&layer).unwrap();
        let mut claim = store.claim();
        assert_eq!(claim.image("x:1").unwrap().id, image.id);
        // The container appears, and lets go of its claim, after those that were there had been counted.
        let claim = Mutex::new(Some(claim));
        let too_early = || {
            drop(claim.lock().take());
            Ok(HashSet::new())
        };
        store.remove(&image.id, &too_early).unwrap();
        assert!(layer.exists());
        assert!(store.claim().image("x:1").is_none(), "nothing is begun with an image that is gone");
        store.collect(&BTreeMap::new(), &HashSet::new(), Duration::ZERO).unwrap();
        assert!(!layer.exists());
    }
}
