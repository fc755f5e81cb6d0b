//! Names of images: `nginx`, `nginx:1.27`, `ghcr.io/a/b@sha256:…`. Which texts are names is what distribution/reference says, as
//! upstream's v1.36 has it.

use std::fmt;
use std::str::FromStr;

/// Where names without a host are.
const DOCKER: &str = "docker.io";
/// `docker.io` by its older name.
const DOCKER_INDEX: &str = "index.docker.io";
const MAX_REPOSITORY: usize = 255;
const MAX_TAG: usize = 128;

/// A name in its full form (`ParseNormalizedNamed`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// `docker.io`, `localhost:5000`, …
    pub host: String,
    /// `library/nginx`
    pub repository: String,
    pub tag: Option<String>,
    pub digest: Option<String>,
}

impl Reference {
    /// What to ask the registry for.
    pub fn selector(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or("latest")
    }

    /// `docker.io/library/nginx`
    pub fn name(&self) -> String {
        format!("{}/{}", self.host, self.repository)
    }

    pub fn with_digest(&self, digest: &str) -> String {
        format!("{}@{digest}", self.name())
    }

    /// Whether the registry is one of the machine that asks for it.
    pub fn is_on_loopback(&self) -> bool {
        is_loopback(host_name(&self.host))
    }

    /// The tag form, unless there is a digest: that says which image is meant, and the registry has perhaps another one under the tag.
    pub fn tagged(&self) -> Option<String> {
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

/// Why a text names no image, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReference {
    #[error("invalid reference format")]
    Format,
    #[error("invalid reference format: repository name ({0}) must be lowercase")]
    Uppercase(String),
    #[error("invalid repository name ({0}), cannot specify 64-byte hexadecimal strings")]
    Id(String),
    #[error("repository name must not be more than 255 characters")]
    TooLong,
    #[error("unsupported digest algorithm")]
    DigestAlgorithm,
    #[error("invalid checksum digest length")]
    DigestLength,
    #[error("invalid checksum digest format")]
    DigestFormat,
}

impl FromStr for Reference {
    type Err = BadReference;

    fn from_str(text: &str) -> Result<Self, BadReference> {
        if text.len() == 64 && text.bytes().all(is_lower_hex) {
            return Err(BadReference::Id(text.to_owned()));
        }
        let has_uppercase = |text: &str| text.to_lowercase() != text;
        let (host, rest) = match text.split_once('/') {
            Some((first, rest)) if first == "localhost" || first.contains(['.', ':']) || has_uppercase(first) => {
                (if first == DOCKER_INDEX { DOCKER } else { first }, rest)
            }
            _ => (DOCKER, text),
        };
        let rest = if host == DOCKER && !rest.contains('/') { format!("library/{rest}") } else { rest.to_owned() };
        let lower = rest.split(':').next().unwrap_or_default();
        if has_uppercase(lower) {
            return Err(BadReference::Uppercase(lower.to_owned()));
        }
        let (repository, tag, digest) = split(&rest).ok_or(BadReference::Format)?;
        if !is_host(host) || !is_path(repository) {
            return Err(BadReference::Format);
        }
        if repository.len() > MAX_REPOSITORY {
            return Err(BadReference::TooLong);
        }
        if let Some(digest) = digest {
            check_digest(digest)?;
        }
        // A digest says enough.
        let tag = tag.or(digest.is_none().then_some("latest"));
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(Self { host: host.to_owned(), repository: repository.to_owned(), tag: owned(tag), digest: owned(digest) })
    }
}

/// Whether a text has the form of a name (`ReferenceRegexp`): less than being one.
pub fn is_reference(text: &str) -> bool {
    let Some((name, ..)) = split(text) else { return false };
    is_path(name) || name.split_once('/').is_some_and(|(host, path)| is_host(host) && is_path(path))
}

/// Name, tag and digest. The name may be none.
fn split(text: &str) -> Option<(&str, Option<&str>, Option<&str>)> {
    let (rest, digest) = text.split_once('@').map_or((text, None), |(rest, digest)| (rest, Some(digest)));
    let (name, tag) = match rest.rsplit_once(':') {
        // A colon before a slash belongs to a port.
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    (tag.is_none_or(is_tag) && digest.is_none_or(is_digest)).then_some((name, tag, digest))
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let is_name = match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(ip) => !ip.is_empty() && ip.bytes().all(|b| b.is_ascii_hexdigit() || b == b':'),
        None => name.split('.').all(is_label),
    };
    is_name && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

fn is_path(path: &str) -> bool {
    path.split('/').all(is_component)
}

fn is_component(part: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator = |run: &str| matches!(run, "" | "." | "_" | "__") || run.bytes().all(|b| b == b'-');
    part.starts_with(is_plain) && part.ends_with(is_plain) && part.split(is_plain).all(is_separator)
}

fn is_tag(tag: &str) -> bool {
    !tag.is_empty()
        && tag.len() <= MAX_TAG
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
        && !tag.starts_with(['.', '-'])
}

fn is_digest(digest: &str) -> bool {
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic()) && word.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.split(['-', '_', '+', '.']).all(is_word)
            && hex.len() >= 32
            && hex.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

/// Of what has the form of a digest (`Digest.Validate` of go-digest).
fn check_digest(digest: &str) -> Result<(), BadReference> {
    let (algorithm, hex) = digest.split_once(':').ok_or(BadReference::DigestFormat)?;
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ if algorithm.contains(|c: char| c.is_ascii_uppercase()) => return Err(BadReference::DigestFormat),
        _ => return Err(BadReference::DigestAlgorithm),
    };
    if hex.len() != length {
        return Err(BadReference::DigestLength);
    }
    if hex.bytes().all(is_lower_hex) { Ok(()) } else { Err(BadReference::DigestFormat) }
}

/// Whether a text is a digest of the kind that images have nearly always.
pub fn is_sha256(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_lower_hex))
}

fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// A host without its port.
pub fn host_name(host: &str) -> &str {
    host.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map_or(host, |(name, _)| name)
}

/// Whether a host, without its port, is this machine's own.
pub fn is_loopback(name: &str) -> bool {
    let name = name.trim_matches(['[', ']']);
    name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// The name without tag and digest.
pub fn repository(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    match name.rsplit_once(':') {
        // A colon before a slash belongs to a port.
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    }
}

/// When it is pulled if nobody says so: an image without a tag, or tagged `latest`, may change behind its name.
pub fn pull_policy(image: &str) -> &'static str {
    if image.is_empty() {
        return "IfNotPresent";
    }
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let last = name.rsplit('/').next().unwrap_or(name);
    match (last.rsplit_once(':'), digest) {
        (Some((_, "latest")), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
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
            ("Registry/a", Some("Registry/a:latest")),
        ] {
            let parsed = text.parse::<Reference>().ok().map(|reference| reference.to_string());
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

    #[test]
    fn what_names_no_image_is_refused_in_upstreams_words() {
        let (hex, long) = ("0123456789abcdef".repeat(4), "a".repeat(256));
        let format = "invalid reference format";
        let id = format!("invalid repository name ({hex}), cannot specify 64-byte hexadecimal strings");
        for (text, expected) in [
            ("", format),
            ("nginx:", format),
            ("a//b", format),
            ("a b", format),
            ("a___b", format),
            ("../etc", format),
            ("-a.example/b", format),
            ("a.example:port/b", format),
            ("x@sha256:12", format),
            ("Nginx", "invalid reference format: repository name (library/Nginx) must be lowercase"),
            ("r.example/a/B:x", "invalid reference format: repository name (a/B) must be lowercase"),
            (long.as_str(), "repository name must not be more than 255 characters"),
            (format!("x@md5:{}", &hex[..32]).as_str(), "unsupported digest algorithm"),
            (format!("x@sha512:{hex}").as_str(), "invalid checksum digest length"),
            (format!("x@sha256:{}", hex.to_uppercase()).as_str(), "invalid checksum digest format"),
            (hex.as_str(), id.as_str()),
        ] {
            let refused = text.parse::<Reference>().map_err(|why| why.to_string());
            assert_eq!(refused.unwrap_err(), expected, "{text}");
        }
        for digest in [format!("sha256:{hex}"), format!("sha512:{hex}{hex}")] {
            let reference: Reference = format!("a@{digest}").parse().unwrap();
            assert_eq!((reference.tag, reference.digest), (None, Some(digest)));
        }
    }

    #[test]
    fn names_have_a_form() {
        let hex = "0123456789abcdef".repeat(4);
        for (text, expected) in [
            ("nginx", true),
            ("nginx:1.2", true),
            ("reg.io:5000/a/b_c:v1", true),
            ("localhost/x", true),
            ("Registry/x", true),
            ("[::1]:5000/x", true),
            ("a__b", true),
            ("a--b", true),
            ("a___b", false),
            ("a..b", false),
            ("Nginx", false),
            ("nginx:", false),
            ("-x", false),
            ("a b", false),
            ("a.example:/x", false),
            ("x@sha256:abc", false),
            (format!("x@sha256:{hex}").as_str(), true),
            (format!("x:1@any+kind:{hex}").as_str(), true),
        ] {
            assert_eq!(is_reference(text), expected, "{text}");
        }
    }

    #[test]
    fn repositories_have_neither_tag_nor_digest() {
        for (image, expected) in [
            ("nginx:1", "nginx"),
            ("nginx", "nginx"),
            ("nginx@sha256:x", "nginx"),
            ("localhost:5000/a/b", "localhost:5000/a/b"),
            ("localhost:5000/a/b:1@sha256:x", "localhost:5000/a/b"),
        ] {
            assert_eq!(repository(image), expected);
        }
    }

    #[test]
    fn pull_policies_follow_the_tag() {
        for (image, policy) in [
            ("", "IfNotPresent"),
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:latest@sha256:abc", "Always"),
            ("nginx:1.27", "IfNotPresent"),
            ("localhost:5000/nginx", "Always"),
            ("localhost:5000/nginx:1", "IfNotPresent"),
            ("nginx@sha256:abc", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }
}
