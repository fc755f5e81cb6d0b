//! The plug-ins as a binary of their own, for runtimes that are not ours: link it under each plug-in's name.

use std::process::ExitCode;

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&name).file_name().unwrap_or_default().to_string_lossy().into_owned();
    match cni::plugin(&name) {
        Some(plugin) => plugin.run(),
        None => {
            let names: Vec<&str> = cni::PLUGINS.iter().map(|plugin| plugin.name).collect();
            eprintln!("{name:?} is not a plug-in; link this file as one of: {}", names.join(", "));
            ExitCode::FAILURE
        }
    }
}
