//! hostPath volumes: the type check, and making what may be made.

use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Where a hostPath is on this node: what is below upstream's directory of the kubelet is below ours. So drivers that are
/// installed by their usual manifests share that directory with the kubelet of their node, wherever it is, and however many
/// kubelets a machine has.
pub(crate) fn on_node(path: &Path, usual_root: &Path, root: &Path) -> PathBuf {
    match path.strip_prefix(usual_root) {
        Ok(inner) if inner.as_os_str().is_empty() => root.to_path_buf(),
        Ok(inner) => root.join(inner),
        Err(_) => path.to_path_buf(),
    }
}

/// Checks a hostPath against its declared type; the `OrCreate` types make it.
pub(crate) fn check(path: &Path, kind: &str) -> io::Result<()> {
    let fail =
        |what: &str| Err(io::Error::other(format!("hostPath type check failed: {} is not {what}", path.display())));
    match kind {
        "DirectoryOrCreate" if !path.exists() => {
            std::fs::create_dir_all(path)?;
            return std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755));
        }
        "FileOrCreate" if !path.exists() => {
            std::fs::OpenOptions::new().create(true).append(true).mode(0o644).open(path)?;
            return Ok(());
        }
        _ => {}
    }
    let found = std::fs::metadata(path).map(|meta| meta.file_type());
    let is = |test: fn(&std::fs::FileType) -> bool| found.as_ref().is_ok_and(test);
    match kind {
        // The runtime makes a directory where nothing is.
        "" => Ok(()),
        "Directory" | "DirectoryOrCreate" if !is(|t| t.is_dir()) => fail("a directory"),
        "File" | "FileOrCreate" if !is(|t| t.is_file()) => fail("a file"),
        "Socket" if !is(|t| t.is_socket()) => fail("a socket file"),
        "CharDevice" if !is(|t| t.is_char_device()) => fail("a character device"),
        "BlockDevice" if !is(|t| t.is_block_device()) => fail("a block device"),
        "Directory" | "DirectoryOrCreate" | "File" | "FileOrCreate" | "Socket" | "CharDevice" | "BlockDevice" => Ok(()),
        other => Err(io::Error::other(format!("{other} is an invalid volume type"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_directory_of_the_kubelet_is_ours() {
        for (path, expected) in [
            ("/var/lib/kubelet", "/data/kubelet"),
            ("/var/lib/kubelet/", "/data/kubelet"),
            ("/var/lib/kubelet/plugins/d", "/data/kubelet/plugins/d"),
            ("/var/lib/kubelets", "/var/lib/kubelets"),
            ("/var/lib", "/var/lib"),
        ] {
            let found = on_node(Path::new(path), Path::new("/var/lib/kubelet"), Path::new("/data/kubelet"));
            assert_eq!(found, Path::new(expected), "{path}");
        }
    }

    #[test]
    fn types() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        for (name, kind, fine) in [
            (".", "", true),
            ("missing", "", true),
            (".", "Directory", true),
            ("file", "Directory", false),
            ("file", "File", true),
            ("missing", "File", false),
            ("new/dir", "DirectoryOrCreate", true),
            ("new/file", "FileOrCreate", true),
            ("file", "Socket", false),
            ("file", "Nonsense", false),
        ] {
            assert_eq!(check(&dir.path().join(name), kind).is_ok(), fine, "{name} {kind}");
        }
        assert!(dir.path().join("new/file").is_file());
        assert_eq!(
            check(&dir.path().join("file"), "Directory").unwrap_err().to_string(),
            format!("hostPath type check failed: {}/file is not a directory", dir.path().display())
        );
    }
}
