//! ImageService.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cri::tonic::{self, Request, Response, Status};
use cri::v1;
use cri::v1::image_service_server::ImageService;
use files::Usage;
use tokio_stream::Stream;

use crate::blocking::blocking;
use crate::disk_usage::{Found, Keep};
use crate::engine::Engine;
use crate::error::{Error, doing};
use crate::image::{self, Credentials, store::Image};

/// The images in the memory of what is on the disk. They change only with a pull or a removal, but for leftovers.
const IMAGES: &str = "images";
const IMAGES_GOOD_FOR: Duration = Duration::from_secs(600);
const CONTAINERS_GOOD_FOR: Duration = Duration::from_secs(60);

pub(crate) struct Images {
    pub(crate) engine: Arc<Engine>,
}

type Reply<T> = Result<Response<T>, Status>;

fn to_cri(image: &Image) -> v1::Image {
    // `user` or `user:group`; a number is an id, anything else a name.
    let user = image.config.user.split(':').next().unwrap_or_default();
    let uid = match user {
        "" => Some(0),
        user => user.parse::<i64>().ok(),
    };
    v1::Image {
        id: image.id.clone(),
        repo_tags: image.tags.clone(),
        repo_digests: image.digests.clone(),
        size: image.size,
        uid: uid.map(|value| v1::Int64Value { value }),
        username: if uid.is_none() { user.into() } else { String::new() },
        spec: None,
        pinned: image.pinned,
    }
}

impl Images {
    fn list(&self, filter: Option<v1::ImageFilter>) -> Vec<v1::Image> {
        match filter.and_then(|f| f.image).filter(|i| !i.image.is_empty()) {
            Some(spec) => self.engine.images.get(&spec.image).iter().map(|i| to_cri(i)).collect(),
            None => self.engine.images.list().iter().map(|i| to_cri(i)).collect(),
        }
    }
}

/// What the kubelet passes of a pull secret.
fn credentials(auth: v1::AuthConfig) -> Result<Option<Credentials>, Error> {
    if !auth.registry_token.is_empty() {
        return Ok(Some(Credentials::Token(auth.registry_token)));
    }
    // `docker login` writes a name without a password beside it.
    if !auth.identity_token.is_empty() && auth.password.is_empty() {
        return Ok(Some(Credentials::Identity(auth.identity_token)));
    }
    if !auth.username.is_empty() {
        return Ok(Some(Credentials::Basic { username: auth.username, password: auth.password }));
    }
    if !auth.auth.is_empty() {
        let decoded = STANDARD.decode(auth.auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
        let (username, password) = pair.ok_or_else(|| Error::Invalid("invalid docker auth".into()))?;
        let password = password.trim_end_matches('\0');
        return Ok(Some(Credentials::Basic { username: username.into(), password: password.into() }));
    }
    Ok(None)
}

#[tonic::async_trait]
impl ImageService for Images {
    async fn list_images(&self, request: Request<v1::ListImagesRequest>) -> Reply<v1::ListImagesResponse> {
        Ok(Response::new(v1::ListImagesResponse { images: self.list(request.into_inner().filter) }))
    }

    type StreamImagesStream = Pin<Box<dyn Stream<Item = Result<v1::StreamImagesResponse, Status>> + Send>>;

    async fn stream_images(&self, request: Request<v1::StreamImagesRequest>) -> Reply<Self::StreamImagesStream> {
        let images = self.list(request.into_inner().filter);
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(v1::StreamImagesResponse { images })))))
    }

    async fn image_status(&self, request: Request<v1::ImageStatusRequest>) -> Reply<v1::ImageStatusResponse> {
        let name = request.into_inner().image.unwrap_or_default().image;
        let image = self.engine.images.get(&name).map(|i| to_cri(&i));
        Ok(Response::new(v1::ImageStatusResponse { image, info: Default::default() }))
    }

    async fn pull_image(&self, request: Request<v1::PullImageRequest>) -> Reply<v1::PullImageResponse> {
        let request = request.into_inner();
        let name = request.image.unwrap_or_default().image;
        let credentials = credentials(request.auth.unwrap_or_default())?;
        let pull = || {
            let (engine, name, credentials) = (self.engine.clone(), name.clone(), credentials.clone());
            // Boxed: a task is compiled for each scheduler that may run it.
            Box::pin(async move { image::pull(&engine.images, &engine.mirrors, &name, credentials).await })
        };
        let pulled = image::pull_through(self.engine.config.pulls.as_ref(), &name, pull).await;
        self.engine.walks.forget(IMAGES);
        let image = pulled.map_err(|source| Error::Pull { image: name, source: Box::new(source) })?;
        Ok(Response::new(v1::PullImageResponse { image_ref: image.id.clone() }))
    }

    async fn remove_image(&self, request: Request<v1::RemoveImageRequest>) -> Reply<v1::RemoveImageResponse> {
        let name = request.into_inner().image.unwrap_or_default().image;
        if let Some(image) = self.engine.images.get(&name) {
            let engine = self.engine.clone();
            let id = image.id.clone();
            blocking(move || engine.images.remove(&id, &|| engine.used_layers()).map_err(std::io::Error::other))
                .await
                .map_err(doing(format!("removing image {name}")))?;
            self.engine.walks.forget(IMAGES);
        }
        Ok(Response::new(v1::RemoveImageResponse {}))
    }

    async fn image_fs_info(&self, _: Request<v1::ImageFsInfoRequest>) -> Reply<v1::ImageFsInfoResponse> {
        let engine = self.engine.clone();
        let usage = blocking(move || {
            let root = engine.images.root();
            let of = |what: &str, keep: Duration, names: &[&str]| {
                let walk = || {
                    let sums = names.iter().map(|name| files::usage(&root.join(name)));
                    let plus = |a: Usage, b: Usage| Usage { bytes: a.bytes + b.bytes, inodes: a.inodes + b.inodes };
                    sums.fold(Usage::default(), plus)
                };
                let Found { usage, at } = engine.walks.usage(what, Keep::For(keep), walk);
                v1::FilesystemUsage {
                    timestamp: at,
                    fs_id: Some(v1::FilesystemIdentifier { mountpoint: root.display().to_string() }),
                    used_bytes: Some(v1::UInt64Value { value: usage.bytes }),
                    inodes_used: Some(v1::UInt64Value { value: usage.inodes }),
                }
            };
            let images = of(IMAGES, IMAGES_GOOD_FOR, &["blobs", "layers", "images"]);
            Ok((images, of("containers", CONTAINERS_GOOD_FOR, &["containers"])))
        })
        .await
        .map_err(doing("measuring the image filesystem"))?;
        Ok(Response::new(v1::ImageFsInfoResponse {
            image_filesystems: vec![usage.0],
            container_filesystems: vec![usage.1],
        }))
    }
}
