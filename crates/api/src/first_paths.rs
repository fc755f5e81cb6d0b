//! The first of many paths: a body has room for a hundred thousand mistakes, each of which takes many times its size to be named.

pub(crate) const MAX_SHOWN: usize = 1000;
/// As many bytes, and one more field: each may be below a key of a megabyte, or be shown with all of a list.
pub(crate) const MAX_SIZE: usize = 1 << 20;

/// Paths of fields, in the order they were found. The first are named, up to a thousand of them and a megabyte.
#[derive(Clone, Debug, Default)]
pub struct FirstPaths {
    named: Vec<String>,
    size: usize,
}

impl FirstPaths {
    pub fn is_full(&self) -> bool {
        self.named.len() >= MAX_SHOWN || self.size >= MAX_SIZE
    }

    /// The path is made only if it is named.
    pub fn add(&mut self, path: impl FnOnce() -> String) {
        if !self.is_full() {
            let path = path();
            self.size += path.len();
            self.named.push(path);
        }
    }

    pub fn len(&self) -> usize {
        self.named.len()
    }

    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    pub fn named(self) -> Vec<String> {
        self.named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_and_many_are_named_within_a_limit() {
        let key = "k".repeat(300_000);
        let mut paths = FirstPaths::default();
        (0..100_000).for_each(|number| paths.add(|| format!("{key}.f{number}")));
        assert_eq!(paths.named().len(), 4);
        let mut paths = FirstPaths::default();
        (0..100_000).for_each(|number| paths.add(|| format!("f{number}")));
        assert_eq!(paths.named().len(), MAX_SHOWN);
    }
}
