//! Images made from what Debian has installed here: busybox (static) and nginx with its libraries.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

pub use crate::registry::digest;

use crate::registry::Registry;

/// An image in memory: compressed layers and a configuration.
#[derive(Clone)]
pub struct Image {
    layers: Vec<(Vec<u8>, &'static str)>,
    config: Vec<u8>,
}

/// Compressed so that whoever reads it needs so much memory, a power of two, however little it is.
pub fn zstd_with_window(content: &[u8], log: u32) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(log).unwrap();
    let (first, rest) = content.split_at(content.len() / 2);
    // Before all of it is known, the window is not made to fit.
    encoder.write_all(first).unwrap();
    encoder.flush().unwrap();
    encoder.write_all(rest).unwrap();
    encoder.finish().unwrap()
}

/// How a layer is compressed in the registry.
#[derive(Clone, Copy)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Image {
    /// `config` is the `config` object of the image configuration: `{"Cmd": ["sh"], …}`.
    pub fn new(layers: Vec<(Vec<u8>, Compression)>, config: Value) -> Self {
        let diff_ids: Vec<String> = layers.iter().map(|(tar, _)| digest(tar)).collect();
        let layers = layers
            .into_iter()
            .map(|(tar, compression)| match compression {
                Compression::None => (tar, "application/vnd.oci.image.layer.v1.tar"),
                Compression::Gzip => {
                    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                    encoder.write_all(&tar).unwrap();
                    (encoder.finish().unwrap(), "application/vnd.oci.image.layer.v1.tar+gzip")
                }
                Compression::Zstd => {
                    let compressed = zstd::encode_all(tar.as_slice(), 1).unwrap();
                    (compressed, "application/vnd.oci.image.layer.v1.tar+zstd")
                }
            })
            .collect();
        let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        Self { layers, config: config.to_string().into_bytes() }
    }

    pub fn manifest(&self) -> Vec<u8> {
        let layers: Vec<Value> = self
            .layers
            .iter()
            .map(|(blob, kind)| json!({ "mediaType": kind, "digest": digest(blob), "size": blob.len() }))
            .collect();
        json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": digest(&self.config),
                "size": self.config.len(),
            },
            "layers": layers,
        })
        .to_string()
        .into_bytes()
    }

    /// The image's id: the digest of its configuration.
    pub fn id(&self) -> String {
        digest(&self.config)
    }

    fn blobs(&self) -> impl Iterator<Item = &[u8]> {
        self.layers.iter().map(|(blob, _)| blob.as_slice()).chain([self.config.as_slice()])
    }

    /// As `docker save` writes it.
    pub fn docker_archive(&self, name: &str) -> Vec<u8> {
        let mut layer = Layer::new();
        let mut names = Vec::new();
        for (index, (blob, _)) in self.layers.iter().enumerate() {
            let path = format!("{index}/layer.tar");
            layer.file(&path, 0o644, blob);
            names.push(path);
        }
        layer.file("config.json", 0o644, &self.config);
        let manifest = json!([{ "Config": "config.json", "RepoTags": [name], "Layers": names }]);
        layer.file("manifest.json", 0o644, manifest.to_string().as_bytes());
        layer.finish()
    }
}

/// A layer's tarball under construction.
pub struct Layer {
    builder: tar::Builder<Vec<u8>>,
}

impl Default for Layer {
    fn default() -> Self {
        Self::new()
    }
}

impl Layer {
    pub fn new() -> Self {
        Self { builder: tar::Builder::new(Vec::new()) }
    }

    fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size);
        header.set_mtime(1_700_000_000);
        header.set_uid(0);
        header.set_gid(0);
        header
    }

    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> &mut Self {
        let mut header = Self::header(tar::EntryType::Regular, mode, content.len() as u64);
        self.builder.append_data(&mut header, path, content).unwrap();
        self
    }

    pub fn directory(&mut self, path: &str, mode: u32) -> &mut Self {
        let mut header = Self::header(tar::EntryType::Directory, mode, 0);
        self.builder.append_data(&mut header, path, &b""[..]).unwrap();
        self
    }

    pub fn symlink(&mut self, path: &str, target: &str) -> &mut Self {
        let mut header = Self::header(tar::EntryType::Symlink, 0o777, 0);
        self.builder.append_link(&mut header, path, target).unwrap();
        self
    }

    pub fn hard_link(&mut self, path: &str, target: &str) -> &mut Self {
        let mut header = Self::header(tar::EntryType::Link, 0o644, 0);
        self.builder.append_link(&mut header, path, target).unwrap();
        self
    }

    /// An entry whose name is written as it is, also `../x`: for layers that try to escape.
    pub fn raw(&mut self, kind: tar::EntryType, name: &[u8], link: &[u8], content: &[u8]) -> &mut Self {
        let mut header = Self::header(kind, 0o644, content.len() as u64);
        let old = header.as_old_mut();
        old.name[..name.len()].copy_from_slice(name);
        old.linkname[..link.len()].copy_from_slice(link);
        header.set_cksum();
        self.builder.append(&header, content).unwrap();
        self
    }

    /// A file of this machine, at the same path or another one.
    pub fn host_file(&mut self, source: &str, path: &str) -> &mut Self {
        let content = fs::read(source).unwrap_or_else(|e| panic!("{source}: {e}"));
        self.file(path.trim_start_matches('/'), 0o755, &content)
    }

    pub fn finish(&mut self) -> Vec<u8> {
        let builder = std::mem::replace(&mut self.builder, tar::Builder::new(Vec::new()));
        builder.into_inner().unwrap()
    }
}

const PASSWD: &str =
    "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\nweb:x:101:102:web:/srv:/bin/sh\n";
const GROUP: &str = "root:x:0:\nnobody:x:65534:\nweb:x:102:\nlogs:x:4:web\n";

/// A layer with busybox and a link for each of its commands.
pub fn busybox_layer() -> Vec<u8> {
    let mut layer = Layer::new();
    for directory in ["bin", "etc", "root", "proc", "sys", "dev", "usr", "usr/bin", "var", "srv"] {
        layer.directory(directory, 0o755);
    }
    layer.directory("tmp", 0o1777);
    layer.host_file("/bin/busybox", "bin/busybox");
    let list = Command::new("/bin/busybox").arg("--list").output().unwrap();
    for command in String::from_utf8(list.stdout).unwrap().lines().filter(|c| *c != "busybox") {
        layer.symlink(&format!("bin/{command}"), "busybox");
    }
    layer.file("etc/passwd", 0o644, PASSWD.as_bytes());
    layer.file("etc/group", 0o644, GROUP.as_bytes());
    layer.finish()
}

/// busybox, with `sh` as its command.
pub fn busybox_image() -> Image {
    let config = json!({ "Cmd": ["sh"], "Env": ["PATH=/usr/local/bin:/bin:/usr/bin:/sbin"] });
    Image::new(vec![(busybox_layer(), Compression::Gzip)], config)
}

/// nginx on port 80 over busybox, logging to its standard streams, answering with its welcome page.
pub fn nginx_image() -> Image {
    let mut layer = Layer::new();
    for directory in
        ["usr/sbin", "usr/share/nginx/html", "etc/nginx", "run", "var/log/nginx", "var/lib/nginx", "var/lock", "lib64"]
    {
        layer.directory(directory, 0o755);
    }
    layer.host_file("/usr/sbin/nginx", "usr/sbin/nginx");
    for library in libraries("/usr/sbin/nginx") {
        layer.host_file(&library, &library);
    }
    layer.file(
        "etc/nginx/nginx.conf",
        0o644,
        b"user web;\nworker_processes 1;\npid /run/nginx.pid;\nerror_log /dev/stderr notice;\n\
          events { worker_connections 64; }\n\
          http {\n  access_log /dev/stdout;\n  server {\n    listen 80;\n    root /usr/share/nginx/html;\n  }\n}\n",
    );
    layer.file("usr/share/nginx/html/index.html", 0o644, b"<h1>Welcome to nginx!</h1>\n");
    let config = json!({
        "Entrypoint": ["nginx"],
        "Cmd": ["-g", "daemon off;"],
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        "StopSignal": "SIGQUIT",
        "ExposedPorts": { "80/tcp": {} },
    });
    Image::new(vec![(busybox_layer(), Compression::Gzip), (layer.finish(), Compression::Zstd)], config)
}

/// What `ldd` says a program needs, the loader included.
fn libraries(program: &str) -> BTreeSet<String> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .split_whitespace()
        .filter(|word| word.starts_with('/') && Path::new(word).exists())
        .map(ToString::to_string)
        .collect()
}

impl Registry {
    /// Pushes an image as `repository:tag` (e.g. `library/nginx:latest`); returns the manifest's digest.
    pub fn push(&self, repository: &str, tag: &str, image: &Image) -> String {
        for blob in image.blobs() {
            self.push_blob(repository, blob);
        }
        let manifest = image.manifest();
        self.push_manifest(repository, tag, "application/vnd.oci.image.manifest.v1+json", &manifest);
        digest(&manifest)
    }
}

/// Pushes [`busybox_image`] as `docker.io/library/busybox:latest`.
pub fn busybox(registry: &Registry) -> Image {
    let image = busybox_image();
    registry.push("library/busybox", "latest", &image);
    image
}

/// Pushes [`nginx_image`] as `docker.io/library/nginx:latest`.
pub fn nginx(registry: &Registry) -> Image {
    let image = nginx_image();
    registry.push("library/nginx", "latest", &image);
    image
}
