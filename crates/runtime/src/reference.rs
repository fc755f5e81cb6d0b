//! Image names: `nginx`, `nginx:1.27`, `ghcr.io/a/b@sha256:…`, always brought to their full form.

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// `docker.io`, `localhost:5000`, …
    pub(crate) host: String,
    /// `library/nginx`
    pub(crate) repository: String,
    pub(crate) tag: Option<String>,
    pub(crate) digest: Option<String>,
}

impl Reference {
    /// What to ask the registry for.
    pub(crate) fn selector(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or("latest")
    }

    /// `docker.io/library/nginx`
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.host, self.repository)
    }

    pub(crate) fn with_digest(&self, digest: &str) -> String {
        format!("{}@{digest}", self.name())
    }

    /// Whether the registry is one of the machine that asks for it.
    pub(crate) fn is_on_loopback(&self) -> bool {
        is_loopback(host_name(&self.host))
    }

    /// The tag form, unless there is a digest: that says which image is meant, and the registry has perhaps another one under the tag.
    pub(crate) fn tagged(&self) -> Option<String> {
        let tag = self.tag.as_ref().filter(|_| self.digest.is_none())?;
        Some(format!("{}:{tag}", self.name()))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// A text that names no image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid image name {0:?}: invalid reference format")]
pub struct BadReference(String);

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        let invalid = || BadReference(text.to_owned());
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) if is_digest(digest) => (rest, Some(digest.to_string())),
            Some(_) => return Err(invalid()),
            None => (text, None),
        };
        let (rest, tag) = match rest.rsplit_once(':') {
            // A colon before a slash belongs to a port.
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(invalid());
        }
        let (host, path) = match rest.split_once('/') {
            Some((first, path)) if first.contains(['.', ':']) || first == "localhost" => (first, path.to_string()),
            _ => ("docker.io", rest.to_string()),
        };
        let host = if host == "index.docker.io" { "docker.io" } else { host };
        let repository = match host {
            "docker.io" if !path.contains('/') => format!("library/{path}"),
            _ => path,
        };
        let is_host = host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:[]_".contains(&b))
            && host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[');
        if !is_host || !repository.split('/').all(is_component) {
            return Err(invalid());
        }
        let tag = match (tag, &digest) {
            (Some(tag), _) => Some(tag.to_string()),
            (None, Some(_)) => None,
            (None, None) => Some("latest".to_string()),
        };
        Ok(Self { host: host.to_string(), repository, tag, digest })
    }
}

/// A host without its port.
pub(crate) fn host_name(host: &str) -> &str {
    host.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map_or(host, |(name, _)| name)
}

/// Whether a host, without its port, is this machine's own.
pub(crate) fn is_loopback(name: &str) -> bool {
    let name = name.trim_matches(['[', ']']);
    name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

pub(crate) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn is_tag(tag: &str) -> bool {
    !tag.is_empty()
        && tag.len() <= 128
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        && !tag.starts_with(['.', '-'])
}

fn is_component(part: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    edge(part.bytes().next())
        && edge(part.bytes().last())
        && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_of_the_machine_are_known_by_their_names() {
        for (name, expected) in [
            ("localhost:5000/a", true),
            ("localhost/a", true),
            ("127.0.0.1:5000/a", true),
            ("127.8.0.1/a", true),
            ("[::1]:5000/a", true),
            ("[::1]/a", true),
            ("localhost.example/a", false),
            ("10.0.0.1:5000/a", false),
            ("a", false),
        ] {
            assert_eq!(name.parse::<Reference>().unwrap().is_on_loopback(), expected, "{name}");
        }
    }

    #[test]
    fn names_are_brought_to_full_form() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, expected) in [
            ("nginx", Some("docker.io/library/nginx:latest")),
            ("nginx:1.27", Some("docker.io/library/nginx:1.27")),
            ("a/b", Some("docker.io/a/b:latest")),
            ("localhost:5000/x:y", Some("localhost:5000/x:y")),
            ("ghcr.io/a/b/c", Some("ghcr.io/a/b/c:latest")),
            ("index.docker.io/nginx", Some("docker.io/library/nginx:latest")),
            ("", None),
            ("NGINX", None),
            ("nginx:", None),
            ("a//b", None),
            ("x@sha256:12", None),
            ("../etc", None),
        ] {
            let parsed = text.parse::<Reference>().ok().map(|r| r.to_string());
            assert_eq!(parsed.as_deref(), expected, "{text}");
        }
        let both: Reference = format!("nginx:1@{digest}").parse().unwrap();
        assert_eq!(both.selector(), digest);
        assert_eq!(both.to_string(), format!("docker.io/library/nginx:1@{digest}"));
    }

    /// Whoever pulls an old image by its digest, and names a tag with it, would have others on the node run it for the tag.
    #[test]
    fn security_a_tag_beside_a_digest_names_no_image() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, expected) in [
            ("shop:prod".to_owned(), Some("docker.io/library/shop:prod")),
            (format!("shop@{digest}"), None),
            (format!("shop:prod@{digest}"), None),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().tagged().as_deref(), expected, "{text}");
        }
    }
}
