//! Names of images.

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
