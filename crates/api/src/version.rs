//! The version of Kubernetes that this is, for everyone who says it.

/// As nodes and kubectl say it.
pub const KUBERNETES: &str = "v1.36.0";

/// As the API server and metrics say it: with our own version.
pub const GIT: &str = concat!("v1.36.0+cox.", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests {
    #[test]
    fn both_are_the_same_release() {
        assert!(super::GIT.starts_with(super::KUBERNETES));
    }
}
