//! What a piece of work follows from.

use crate::Id;
use crate::span::MAX_CAUSES;

/// A few ids, the first one first. Nearly always there is one, which takes no memory of its own.
#[derive(Clone, Default, PartialEq)]
pub struct Causes {
    first: Option<Id>,
    rest: Vec<Id>,
}

impl Causes {
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub fn iter(&self) -> impl Iterator<Item = Id> {
        self.first.into_iter().chain(self.rest.iter().copied())
    }

    /// Adds one, unless it is known or there are enough.
    pub(crate) fn add(&mut self, cause: Id) {
        match self.first {
            None => self.first = Some(cause),
            Some(first) if first == cause || self.rest.contains(&cause) => {}
            Some(_) if self.rest.len() + 1 < MAX_CAUSES => self.rest.push(cause),
            Some(_) => {}
        }
    }

    /// What is between commas; anything that is no id is left out, as is all after the first few.
    pub fn parse(text: &str) -> Self {
        text.split(',').filter_map(|id| id.trim().parse().ok()).collect()
    }
}

impl From<Id> for Causes {
    fn from(id: Id) -> Self {
        Self { first: Some(id), rest: Vec::new() }
    }
}

impl FromIterator<Id> for Causes {
    fn from_iter<I: IntoIterator<Item = Id>>(ids: I) -> Self {
        let mut causes = Self::default();
        ids.into_iter().for_each(|id| causes.add(id));
        causes
    }
}

impl std::fmt::Debug for Causes {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_list().entries(self.iter()).finish()
    }
}

impl std::fmt::Display for Causes {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, cause) in self.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(out, "{comma}{cause}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_few_and_each_once() {
        for (text, expected) in [("rv7, nonsense,rv9,rv7", "rv7,rv9"), ("", ""), ("x", "")] {
            assert_eq!(Causes::parse(text).to_string(), expected, "{text}");
        }
        let many: Causes = (0..100).map(Id::commit).collect();
        assert_eq!(many.iter().count(), MAX_CAUSES);
    }
}
