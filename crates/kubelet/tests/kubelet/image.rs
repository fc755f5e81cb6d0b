//! Builds an image archive from Debian's static busybox.

use std::path::Path;

use serde_json::json;
use sha2::{Digest, Sha256};

/// Writes a docker-archive that holds `/bin/busybox` with links for the commands tests use.
pub(crate) fn busybox(archive: &Path, name: &str, command: &[&str]) {
    let mut layer = tar::Builder::new(Vec::new());
    let binary = std::fs::read("/bin/busybox").expect("busybox-static is installed");
    let mut add = |path: &str, mode: u32, data: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(mode);
        layer.append_data(&mut header, path, data).unwrap();
    };
    add("bin/busybox", 0o4755, &binary);
    add("etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\n");
    add("etc/group", 0o644, b"root:x:0:\n");
    add("www/index.html", 0o644, b"hello from busybox\n");
    for link in [
        "sh", "sleep", "cat", "echo", "httpd", "id", "ls", "test", "touch", "mount", "stat", "env", "hostname", "nc",
        "wget", "kill", "date", "true", "false", "printf", "grep",
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        layer.append_link(&mut header, format!("bin/{link}"), "busybox").unwrap();
    }
    for dir in ["tmp", "proc", "sys", "dev", "data"] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        header.set_mode(if dir == "tmp" { 0o1777 } else { 0o755 });
        layer.append_data(&mut header, format!("{dir}/"), std::io::empty()).unwrap();
    }
    let layer = layer.into_inner().unwrap();
    let digest = |data: &[u8]| Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": arch, "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/bin", "FROM_IMAGE=yes"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))]},
        "history": [{"created_by": name}],
    })
    .to_string();
    let config_name = format!("{}.json", digest(config.as_bytes()));
    let manifest = json!([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).to_string();
    let mut out = tar::Builder::new(std::fs::File::create(archive).unwrap());
    for (path, data) in
        [(config_name.as_str(), config.as_bytes()), ("layer.tar", &layer), ("manifest.json", manifest.as_bytes())]
    {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        out.append_data(&mut header, path, data).unwrap();
    }
    out.finish().unwrap();
}
