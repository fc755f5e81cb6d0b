//! Seccomp: which system calls a container may make.
//!
//! A profile (RuntimeDefault, or a JSON file in the format that docker, containerd and CRI-O share) becomes rules,
//! rules become one BPF program, and the forked child installs it last before exec.

mod bpf;
mod oci;
mod profile;
mod syscalls;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cri::v1;
use cri::v1::security_profile::ProfileType;

/// Why a container has no filter.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error("seccomp profile {path}: {source}")]
    Unreadable { path: String, source: std::io::Error },
    #[error("seccomp profile {path}: {source}")]
    Profile { path: String, source: profile::BadProfile },
    #[error(transparent)]
    Program(#[from] bpf::NoProgram),
}

/// The filters for a container's profile, ready for its spec. No profile means no filter, as CRI has it.
pub(crate) fn filters(
    security: &v1::LinuxContainerSecurityContext,
    capabilities: u64,
) -> Result<Vec<String>, SeccompError> {
    match wanted(security, capabilities)? {
        Some(profile) => Ok(vec![STANDARD.encode(bpf::compile(&profile)?)]),
        None => Ok(Vec::new()),
    }
}

/// The same for an external OCI runtime, in the words of its specification.
pub(crate) fn oci_profile(
    security: &v1::LinuxContainerSecurityContext,
    capabilities: u64,
) -> Result<Option<serde_json::Value>, SeccompError> {
    Ok(wanted(security, capabilities)?.map(|profile| oci::describe(&profile)))
}

fn wanted(
    security: &v1::LinuxContainerSecurityContext,
    capabilities: u64,
) -> Result<Option<bpf::Profile>, SeccompError> {
    if security.privileged {
        return Ok(None);
    }
    let Some(wanted) = &security.seccomp else { return Ok(None) };
    Ok(Some(match wanted.profile_type() {
        ProfileType::Unconfined => return Ok(None),
        ProfileType::RuntimeDefault => profile::runtime_default(capabilities),
        ProfileType::Localhost => {
            let path = wanted.localhost_ref.trim_start_matches("localhost/");
            let text = std::fs::read_to_string(path)
                .map_err(|source| SeccompError::Unreadable { path: path.to_owned(), source })?;
            profile::parse(&text, capabilities)
                .map_err(|source| SeccompError::Profile { path: path.to_owned(), source })?
        }
    }))
}

/// A profile's file: it is refused, or becomes a program that the kernel takes.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz_profile(text: &str) {
    for capabilities in [0, u64::MAX] {
        let Ok(profile) = profile::parse(text, capabilities) else { return };
        let _ = oci::describe(&profile);
        if let Ok(program) = bpf::compile(&profile) {
            bpf::verify(&program);
        }
    }
}
