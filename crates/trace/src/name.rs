//! What a lap is called beyond its stage: the name of an admission plug-in, of a CNI plug-in.
//!
//! A request has dozens of laps, so a lap holds a number instead of a text. Names come from the program and from
//! configuration; the table is bounded all the same, because other processes send names too.

use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::RwLock;

/// A number for a text, the same for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Name(pub(crate) u16);

/// Names beyond this many are all nameless.
const LIMIT: usize = 2000;
const LONGEST: usize = 64;

#[derive(Default)]
struct Table {
    numbers: HashMap<&'static str, u16>,
    texts: Vec<&'static str>,
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(|| {
    let mut table = Table::default();
    table.texts.push("");
    table.numbers.insert("", 0);
    RwLock::new(table)
});

impl Name {
    pub const NONE: Name = Name(0);

    pub fn new(text: &str) -> Self {
        if let Some(number) = TABLE.read().numbers.get(text) {
            return Name(*number);
        }
        let mut table = TABLE.write();
        if let Some(number) = table.numbers.get(text) {
            return Name(*number);
        }
        if table.texts.len() >= LIMIT || text.len() > LONGEST {
            return Name::NONE;
        }
        let number = table.texts.len() as u16;
        // Kept for ever, which the limit makes harmless.
        let text: &'static str = Box::leak(text.to_owned().into_boxed_str());
        table.texts.push(text);
        table.numbers.insert(text, number);
        Name(number)
    }

    pub fn text(self) -> &'static str {
        TABLE.read().texts.get(usize::from(self.0)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_number() {
        let name = Name::new("NamespaceLifecycle");
        assert_eq!(name, Name::new("NamespaceLifecycle"));
        assert_eq!(name.text(), "NamespaceLifecycle");
        assert_eq!(Name::new(""), Name::NONE);
        assert_eq!(Name::new(&"x".repeat(LONGEST + 1)), Name::NONE);
    }
}
