//! Statements and words.

/// A table: its family and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableName<'a> {
    pub(super) family: Family,
    pub(super) name: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Inet,
    Ip,
    Ip6,
    /// Frames that a bridge passes on, before anybody asks what is in them.
    Bridge,
}

impl Family {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Bridge => 7,
            Self::Ip6 => 10,
        }
    }

    pub(super) fn from_number(number: u8) -> Option<Self> {
        [Self::Inet, Self::Ip, Self::Ip6, Self::Bridge].into_iter().find(|family| family.number() == number)
    }

    pub(super) fn parse(word: &str) -> Option<Self> {
        match word {
            "inet" => Some(Self::Inet),
            "ip" => Some(Self::Ip),
            "ip6" => Some(Self::Ip6),
            "bridge" => Some(Self::Bridge),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Add,
    Delete,
    Flush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Table,
    Set,
    Map,
    Chain,
    Rule,
    Element,
}

/// `add rule inet cox-portmap output …`: all but a table's has a name, and something may follow.
#[derive(Debug)]
pub(super) struct Statement<'a> {
    pub(super) verb: Verb,
    pub(super) object: Object,
    pub(super) table: TableName<'a>,
    /// Of the set, map or chain; of the one that a rule or an element goes into.
    pub(super) name: &'a str,
    pub(super) rest: Words<'a>,
}

impl<'a> Statement<'a> {
    /// None for an empty line.
    pub(super) fn parse(line: &'a str) -> Option<Result<Self, ()>> {
        let mut rest = Words::new(line);
        (!rest.is_empty()).then(|| {
            Self::read(&mut rest).ok_or(()).map(|(verb, object, table, name)| Self { verb, object, table, name, rest })
        })
    }

    fn read(words: &mut Words<'a>) -> Option<(Verb, Object, TableName<'a>, &'a str)> {
        let verb = match words.next()? {
            "add" => Verb::Add,
            "delete" => Verb::Delete,
            "flush" => Verb::Flush,
            _ => return None,
        };
        let object = match words.next()? {
            "table" => Object::Table,
            "set" => Object::Set,
            "map" => Object::Map,
            "chain" => Object::Chain,
            "rule" => Object::Rule,
            "element" => Object::Element,
            _ => return None,
        };
        let table = TableName { family: Family::parse(words.next()?)?, name: words.next()? };
        let name = if object == Object::Table { "" } else { words.next()? };
        Some((verb, object, table, name))
    }
}

/// Words are separated by spaces; a comma ends one, and quotes hold one together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text.trim() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn peek(&self) -> Option<&'a str> {
        self.clone().next()
    }

    /// Takes the next word if it is this one.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let mut ahead = *self;
        let found = ahead.next() == Some(word);
        if found {
            *self = ahead;
        }
        found
    }

    pub(super) fn next(&mut self) -> Option<&'a str> {
        let (word, rest) = if let Some(quoted) = self.rest.strip_prefix('"') {
            quoted.split_once('"')?
        } else if let Some(rest) = self.rest.strip_prefix(',') {
            (&self.rest[..1], rest)
        } else {
            let end = self.rest.find(char::is_whitespace).unwrap_or(self.rest.len());
            let word = &self.rest[..end];
            let word = word.strip_suffix(',').unwrap_or(word);
            (word, &self.rest[word.len()..])
        };
        self.rest = rest.trim_start();
        (!word.is_empty()).then_some(word)
    }
}
