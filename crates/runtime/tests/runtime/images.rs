//! Pulling: names, servers, passwords, broken and hostile content.

use std::sync::Arc;

use cri::tonic::Code;
use cri::v1;
use serde_json::json;
use testkit::images::{Compression, Image, Layer, busybox_layer, digest};

use crate::node::{World, spec};

pub(crate) async fn images_are_listed_and_removed(world: Arc<World>) {
    let node = world.node().await;
    let id = node.pull("nginx:latest").await;
    let mut images = node.cri.images.clone();
    let request = v1::ImageStatusRequest { image: Some(spec("docker.io/library/nginx")), verbose: false };
    let image = images.image_status(request.clone()).await.unwrap().into_inner().image.unwrap();
    assert_eq!(image.id, id);
    assert_eq!(image.repo_tags, ["docker.io/library/nginx:latest"]);
    let manifest = digest(&world.nginx.manifest());
    assert_eq!(image.repo_digests, [format!("docker.io/library/nginx@{manifest}")]);
    assert_eq!(node.pull(&format!("nginx@{manifest}")).await, id);
    let listed = images.list_images(v1::ListImagesRequest::default()).await.unwrap().into_inner().images;
    assert_eq!(listed.len(), 1);
    let usage = images.image_fs_info(v1::ImageFsInfoRequest {}).await.unwrap().into_inner();
    assert!(usage.image_filesystems[0].used_bytes.unwrap().value > image.size);
    images.remove_image(v1::RemoveImageRequest { image: Some(spec("nginx")) }).await.unwrap();
    assert_eq!(images.image_status(request).await.unwrap().into_inner().image, None);
    let blobs = std::fs::read_dir(node.path().join("root/blobs/sha256")).unwrap().count();
    assert_eq!(blobs, 0, "nothing of it is left");
}

pub(crate) async fn missing_images_and_bad_names(world: Arc<World>) {
    let node = world.node().await;
    // The mirror answers 404 and the registry itself cannot be reached from here.
    let error = node.try_pull("no-such-image", None).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    assert!(error.message().contains("not found"), "{error}");
    let error = node.try_pull("Not A Name", None).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
}

pub(crate) async fn passwords_are_sent_where_asked_for(world: Arc<World>) {
    let node = world.node().await;
    let private = testkit::registry::start_with_password();
    let image = testkit::images::busybox(&private);
    let name = format!("{}/library/busybox", private.addr);
    let error = node.try_pull(&name, None).await.unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    let auth = |password: &str| v1::AuthConfig {
        username: testkit::registry::USER.into(),
        password: password.into(),
        ..Default::default()
    };
    assert!(node.try_pull(&name, Some(auth("wrong"))).await.is_err());
    let id = node.try_pull(&name, Some(auth(testkit::registry::PASSWORD))).await.unwrap();
    assert_eq!(id, image.id());
}

pub(crate) async fn an_index_is_followed(world: Arc<World>) {
    let node = world.node().await;
    let image = testkit::images::busybox_image();
    let manifest_digest = world.registry.push("multi/busybox", "one", &image);
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": manifest_digest,
            "size": image.manifest().len(),
            "platform": { "os": "linux", "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" } },
        }],
    })
    .to_string();
    world.registry.push_manifest("multi/busybox", "all", "application/vnd.oci.image.index.v1+json", index.as_bytes());
    assert_eq!(node.pull("multi/busybox:all").await, image.id());
}

/// Layers change, hide and replace what is below them.
pub(crate) async fn layers_lie_over_each_other(world: Arc<World>) {
    let node = world.node().await;
    let mut lower = Layer::new();
    lower.directory("d", 0o755).file("d/a", 0o644, b"a").file("d/b", 0o644, b"b").file("gone", 0o644, b"x");
    lower.file("kept", 0o600, b"kept").hard_link("link", "kept").file("replaced", 0o644, b"old");
    let mut upper = Layer::new();
    upper.file("d/.wh..wh..opq", 0, b"").file("d/c", 0o644, b"c").file(".wh.gone", 0, b"");
    upper.directory("replaced", 0o750).symlink("abs", "/etc/passwd");
    let layers = vec![
        (busybox_layer(), Compression::Gzip),
        (lower.finish(), Compression::None),
        (upper.finish(), Compression::Zstd),
    ];
    world.registry.push("t/layers", "latest", &Image::new(layers, json!({ "Cmd": ["sleep", "1000"] })));
    node.pull("t/layers").await;
    let (sandbox, container) = node.run("layers", "t/layers", &[]).await;
    for (script, expected) in [
        ("ls d", "c\n"),
        ("ls gone 2>/dev/null || echo hidden", "hidden\n"),
        ("stat -c '%a %h' kept link", "600 2\n600 2\n"),
        ("stat -c '%F %a' replaced", "directory 750\n"),
        ("head -1 abs | cut -d: -f1", "root\n"),
    ] {
        assert_eq!(node.sh(&container, script).await, expected, "{script}");
    }
    node.remove_sandbox(&sandbox).await;
}

type Attempt = Box<dyn Fn(&mut Layer)>;

/// A layer can write into itself and nowhere else.
pub(crate) async fn layers_cannot_escape(world: Arc<World>) {
    let node = world.node().await;
    let outside = node.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    let out = outside.display().to_string();
    let file = tar::EntryType::Regular;
    let attempts: Vec<(&str, Attempt)> = vec![
        (
            "dotdot",
            Box::new(move |l| {
                l.raw(file, b"../../../../../../tmp/coxrt-escaped", b"", b"x");
            }),
        ),
        (
            "deep",
            Box::new(move |l| {
                l.raw(file, b"a/../../../../../tmp/coxrt-escaped", b"", b"x");
            }),
        ),
        ("symlink", {
            let out = out.clone();
            Box::new(move |l| {
                l.symlink("s", &out).file("s/escaped", 0o644, b"x");
            })
        }),
        (
            "symlink-up",
            Box::new(move |l| {
                l.symlink("s", "../../../../../..").file("s/tmp/coxrt-escaped", 0o644, b"x");
            }),
        ),
        ("hard-link", {
            let out = out.clone();
            Box::new(move |l| {
                l.raw(tar::EntryType::Link, b"h", format!("{out}/secret").as_bytes(), b"");
                l.file("h", 0o644, b"changed");
            })
        }),
        ("overwrite-link", {
            let out = out.clone();
            Box::new(move |l| {
                l.symlink("f", &format!("{out}/secret")).file("f", 0o644, b"changed");
            })
        }),
    ];
    for (name, attempt) in attempts {
        let mut layer = Layer::new();
        attempt(&mut layer);
        let image = Image::new(vec![(layer.finish(), Compression::Gzip)], json!({ "Cmd": ["x"] }));
        world.registry.push(&format!("evil/{name}"), "latest", &image);
        // Refused or kept inside: both are fine.
        let _ = node.try_pull(&format!("evil/{name}"), None).await;
        assert!(!std::path::Path::new("/tmp/coxrt-escaped").exists(), "{name}");
        let found: Vec<_> = std::fs::read_dir(&outside).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(found, ["secret"], "{name}");
        assert_eq!(std::fs::read_to_string(outside.join("secret")).unwrap(), "secret", "{name}");
    }
}

/// Walk 8.2.
/// What comes must be what was promised.
pub(crate) async fn wrong_content_is_refused(world: Arc<World>) {
    let node = world.node().await;
    let good = testkit::images::busybox_image();
    world.registry.push("t/wrong", "latest", &good);
    let mut manifest: serde_json::Value = serde_json::from_slice(&good.manifest()).unwrap();
    // The layer's diff id no longer fits: its place is taken by the configuration blob.
    manifest["layers"][0]["digest"] = manifest["config"]["digest"].clone();
    manifest["layers"][0]["size"] = manifest["config"]["size"].clone();
    world.registry.push_manifest(
        "t/wrong",
        "latest",
        "application/vnd.oci.image.manifest.v1+json",
        manifest.to_string().as_bytes(),
    );
    let error = node.try_pull("t/wrong", None).await.unwrap_err();
    assert!(error.message().contains("unpacks to") || error.message().contains("unpacking"), "{error}");
}

/// `cox image` beside a running runtime, and archives that are there at start.
pub(crate) async fn archives_go_in_and_out(world: Arc<World>) {
    let mut node = world.node().await;
    let image = testkit::images::busybox_image();
    let (docker, layout) = (node.path().join("docker.tar"), node.path().join("layout.tar"));
    std::fs::write(&docker, image.docker_archive("example.com/box:1")).unwrap();
    let cox = |args: &[&str]| {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .arg("image")
            .args(args)
            .arg("--root")
            .arg(node.path().join("root"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(cox(&["import", docker.to_str().unwrap()]), "example.com/box:1\n");
    cox(&["tag", "example.com/box:1", "example.com/box:2"]);
    assert!(cox(&["list"]).contains("example.com/box"));
    cox(&["export", "-o", layout.to_str().unwrap(), "example.com/box:2"]);
    let status = |name: &str| v1::ImageStatusRequest { image: Some(spec(name)), verbose: false };
    let mut images = node.cri.images.clone();
    let found = images.image_status(status("example.com/box:2")).await.unwrap().into_inner().image.unwrap();
    assert_eq!(found.id, image.id(), "the runtime sees it at once");
    let (sandbox, container) = node.run("box", "example.com/box:1", &["sleep", "1000"]).await;
    assert_eq!(node.sh(&container, "echo in").await, "in\n");
    node.remove_sandbox(&sandbox).await;
    cox(&["rm", "example.com/box:1"]);
    cox(&["rm", "example.com/box:2"]);
    assert_eq!(images.list_images(v1::ListImagesRequest::default()).await.unwrap().into_inner().images, []);
    // At the next start it comes back from its directory, and stays.
    std::fs::create_dir_all(node.path().join("archives")).unwrap();
    std::fs::rename(&layout, node.path().join("archives/box.tar")).unwrap();
    node.kill();
    node.restart().await;
    let found = node.cri.images.clone().image_status(status("example.com/box:2")).await.unwrap().into_inner();
    assert!(found.image.unwrap().pinned);
}
