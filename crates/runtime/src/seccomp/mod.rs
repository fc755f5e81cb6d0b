//! Seccomp: which system calls a container may make.
//!
//! A profile (RuntimeDefault, or a JSON file in the format that docker, containerd and CRI-O share) becomes rules,
//! rules become one BPF program, and the forked child installs it last before exec.

mod bpf;
mod profile;
mod syscalls;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cri::v1;
use cri::v1::security_profile::ProfileType;

/// The filters for a container's profile, ready for its spec. No profile means no filter, as CRI has it.
pub(crate) fn filters(security: &v1::LinuxContainerSecurityContext, capabilities: u64) -> Result<Vec<String>, String> {
    if security.privileged {
        return Ok(Vec::new());
    }
    let Some(wanted) = &security.seccomp else { return Ok(Vec::new()) };
    let profile = match wanted.profile_type() {
        ProfileType::Unconfined => return Ok(Vec::new()),
        ProfileType::RuntimeDefault => profile::runtime_default(capabilities),
        ProfileType::Localhost => {
            let path = wanted.localhost_ref.trim_start_matches("localhost/");
            let text = std::fs::read_to_string(path).map_err(|error| format!("seccomp profile {path}: {error}"))?;
            profile::parse(&text, capabilities).map_err(|error| format!("seccomp profile {path}: {error}"))?
        }
    };
    Ok(vec![STANDARD.encode(bpf::compile(&profile)?)])
}
