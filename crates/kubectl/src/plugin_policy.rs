//! Which credential plug-ins may run.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Which credential plug-ins of a kubeconfig may run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum PluginPolicy {
    #[default]
    AllowAll,
    DenyAll,
    Allowlist(Vec<String>),
}

impl PluginPolicy {
    /// Why a program may not run. An entry without a directory means the program of that name on the PATH, and no other.
    pub(crate) fn check(&self, command: &str) -> Result<(), NotAllowed> {
        let entries = match self {
            PluginPolicy::AllowAll => return Ok(()),
            PluginPolicy::DenyAll => return Err(NotAllowed::DenyAll(command.to_owned())),
            PluginPolicy::Allowlist(entries) => entries,
        };
        let path = on_path(command);
        let is_same = |entry: &String| entry == command || path.is_some() && on_path(entry) == path;
        if entries.iter().any(is_same) {
            return Ok(());
        }
        let path = path.unwrap_or_else(|| command.into());
        Err(NotAllowed::NotListed(path))
    }
}

/// Why a credential plug-in may not run; in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAllowed {
    #[error("plugin {0:?} not allowed: policy set to \"DenyAll\"")]
    DenyAll(String),
    #[error("plugin path {0:?} is not permitted by the credential plugin allowlist")]
    NotListed(PathBuf),
}

/// Where a program is; a name with a slash is a path already.
fn on_path(command: &str) -> Option<PathBuf> {
    let is_program = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if command.contains('/') {
        return Some(PathBuf::from(command)).filter(|path| is_program(path));
    }
    let dirs = std::env::var_os("PATH")?;
    std::env::split_paths(&dirs).map(|dir| dir.join(command)).find(|path| is_program(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_plug_ins_are_allowed_by_path_or_as_found_on_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let (allowed, other) = (dir.path().join("a"), dir.path().join("sh"));
        for path in [&allowed, &other] {
            std::fs::write(path, "").unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let (allowed, other) = (allowed.display().to_string(), other.display().to_string());
        let shell = on_path("sh").unwrap().display().to_string();
        let some = PluginPolicy::Allowlist(vec!["sh".to_owned(), allowed.clone()]);
        for (policy, command, expected) in [
            (&PluginPolicy::AllowAll, "x", true),
            (&PluginPolicy::DenyAll, "sh", false),
            (&some, "sh", true),
            (&some, &shell, true),
            (&some, &allowed, true),
            (&some, "a", false),
            // The same name in another directory.
            (&some, &other, false),
        ] {
            assert_eq!(policy.check(command).is_ok(), expected, "{command}");
        }
    }
}
