//! `$KUBE_EDITOR`, `$EDITOR`, `vi`: lets a person change a text.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

pub(crate) fn command() -> String {
    ["KUBE_EDITOR", "EDITOR"]
        .iter()
        .find_map(|v| std::env::var(v).ok().filter(|e| !e.is_empty()))
        .unwrap_or_else(|| "vi".to_owned())
}

/// The text as the person left it.
pub(crate) fn edit_text(text: &str, suffix: &str) -> Result<String> {
    let path = temporary_file(text, suffix)?;
    let result = launch(&path).and_then(|()| Ok(std::fs::read_to_string(&path)?));
    let _ = std::fs::remove_file(&path);
    result
}

/// A private file with the text, which the caller removes.
pub(crate) fn temporary_file(text: &str, suffix: &str) -> Result<PathBuf> {
    let name = format!("kubectl-edit-{}{suffix}", rand::random::<u32>());
    let path = std::env::temp_dir().join(name);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(&path)?.write_all(text.as_bytes())?;
    Ok(path)
}

fn launch(path: &Path) -> Result<()> {
    let editor = command();
    // Through a shell, so that `EDITOR="code --wait"` works.
    let status = std::process::Command::new("/bin/sh")
        .arg("-c")
        .arg(format!("{editor} \"$1\""))
        .arg("sh")
        .arg(path)
        .status()
        .map_err(|e| Failure::message(format!("unable to launch the editor \"{editor}\": {e}")))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::message(format!("there was a problem with the editor \"{editor}\"")))
}
