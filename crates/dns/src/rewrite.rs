//! Questions that are asked under another name or type than the client's, and answers that are told under the client's. Pure.

use std::str::FromStr;

use cel::regex::{self, Regex};
use hickory_proto::rr::{Name, Record, RecordType};

/// One `rewrite` of a Corefile.
#[derive(Debug)]
pub(crate) struct Rule {
    /// Whether the rules after it are looked at, too.
    goes_on: bool,
    change: Change,
    /// What names of answers become, after those that were asked for are the client's again.
    answers: Vec<(Regex, String)>,
}

#[derive(Debug)]
enum Change {
    Exact(Name, Name),
    Prefix(String, String),
    Suffix(String, String),
    Substring(String, String),
    Pattern(Regex, String),
    Type(RecordType, RecordType),
}

/// What a question became, and the way back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rewritten<'a> {
    /// The client's name and the one that is asked for, if they differ.
    names: Option<(Name, Name)>,
    answers: Vec<&'a (Regex, String)>,
}

/// The way back, for answers that come later.
#[derive(Clone, Debug, Default)]
pub(crate) struct Undo {
    names: Option<(Name, Name)>,
    answers: Vec<(Regex, String)>,
}

/// Why a line is no rule.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RuleError {
    #[error("no rule was given")]
    Empty,
    #[error("too few arguments for a {0} rule")]
    TooFew(String),
    #[error("rules of type {0:?} are not supported")]
    Unsupported(String),
    #[error("answer rules of type {0:?} are not supported")]
    UnsupportedAnswer(String),
    #[error("unexpected {0:?} after the rule")]
    Unexpected(String),
    #[error("invalid type {0:?}")]
    Type(String),
    #[error("invalid name {0:?}")]
    Name(String),
    #[error("invalid regular expression {0}")]
    Pattern(String),
}

impl Rule {
    /// `[continue|stop] name [exact|prefix|suffix|substring|regex] FROM TO [answer auto|answer name FROM TO]...`, or
    /// `[continue|stop] type FROM TO`.
    pub(crate) fn read(words: &[String]) -> Result<Rule, RuleError> {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        let goes_on = match words.first() {
            Some(&"continue") => true,
            Some(&"stop") => false,
            _ => {
                words.insert(0, "stop");
                false
            }
        };
        let (change, rest) = match &words[1..] {
            ["type", from, to, rest @ ..] => {
                let kind = |text: &str| {
                    RecordType::from_str(&text.to_ascii_uppercase()).map_err(|_| RuleError::Type(text.to_owned()))
                };
                (Change::Type(kind(from)?, kind(to)?), rest)
            }
            ["name", "exact", from, to, rest @ ..] => (Change::Exact(name(from)?, name(to)?), rest),
            ["name", "prefix", from, to, rest @ ..] => (Change::Prefix(lower(from), lower(to)), rest),
            ["name", "suffix", from, to, rest @ ..] => (Change::Suffix(absolute(from), absolute(to)), rest),
            ["name", "substring", from, to, rest @ ..] => (Change::Substring(lower(from), lower(to)), rest),
            ["name", "regex", from, to, rest @ ..] => (Change::Pattern(pattern(from)?, lower(to)), rest),
            ["name", from, to, rest @ ..] => (Change::Exact(name(from)?, name(to)?), rest),
            [kind @ ("name" | "type"), ..] => return Err(RuleError::TooFew((*kind).to_owned())),
            [kind, ..] => return Err(RuleError::Unsupported((*kind).to_owned())),
            [] => return Err(RuleError::Empty),
        };
        let mut answers = Vec::new();
        let mut rest = rest;
        loop {
            rest = match rest {
                [] => break,
                // Names that were asked for are told as the client's in any case.
                ["answer", "auto", more @ ..] => more,
                ["answer", "name", from, to, more @ ..] => {
                    answers.push((pattern(from)?, lower(to)));
                    more
                }
                ["answer", kind, ..] => return Err(RuleError::UnsupportedAnswer((*kind).to_owned())),
                [other, ..] => return Err(RuleError::Unexpected((*other).to_owned())),
            };
        }
        Ok(Rule { goes_on, change, answers })
    }

    /// The name and type to go on with, if the rule is about this question.
    fn apply(&self, name: &Name, kind: RecordType) -> Option<(Name, RecordType)> {
        let text = name.to_lowercase().to_ascii();
        let changed = match &self.change {
            Change::Type(from, to) => return (*from == kind).then(|| (name.clone(), *to)),
            Change::Exact(from, to) => return (*from == *name).then(|| (to.clone(), kind)),
            Change::Prefix(from, to) => format!("{to}{}", text.strip_prefix(from.as_str())?),
            Change::Suffix(from, to) => format!("{}{to}", text.strip_suffix(from.as_str())?),
            Change::Substring(from, to) if text.contains(from.as_str()) => text.replace(from.as_str(), to),
            Change::Substring(..) => return None,
            Change::Pattern(pattern, to) => filled(pattern, &text, to)?,
        };
        Some((self::name(&changed).ok()?, kind))
    }
}

/// What is asked for in the place of a client's question.
pub(crate) fn apply<'a>(rules: &'a [Rule], name: &Name, kind: RecordType) -> (Name, RecordType, Rewritten<'a>) {
    let (mut asked, mut asked_kind) = (name.clone(), kind);
    let mut rewritten = Rewritten::default();
    for rule in rules {
        let Some((next, next_kind)) = rule.apply(&asked, asked_kind) else { continue };
        (asked, asked_kind) = (next, next_kind);
        rewritten.answers.extend(&rule.answers);
        if !rule.goes_on {
            break;
        }
    }
    if asked != *name {
        rewritten.names = Some((name.clone(), asked.clone()));
    }
    (asked, asked_kind, rewritten)
}

impl Rewritten<'_> {
    pub(crate) fn undo(&self) -> Undo {
        Undo { names: self.names.clone(), answers: self.answers.iter().map(|rule| (*rule).clone()).collect() }
    }
}

impl Undo {
    /// Tells answers under the names that the client knows.
    pub(crate) fn apply(&self, records: &mut [Record]) {
        for record in records {
            if let Some((client, asked)) = &self.names
                && record.name == *asked
            {
                record.name = client.clone();
                continue;
            }
            let text = record.name.to_lowercase().to_ascii();
            let rewritten = self.answers.iter().find_map(|(pattern, to)| filled(pattern, &text, to));
            if let Some(rewritten) = rewritten.and_then(|rewritten| name(&rewritten).ok()) {
                record.name = rewritten;
            }
        }
    }
}

/// `to` with `{1}` and so on replaced by what the groups of the pattern matched; none if it does not match.
fn filled(pattern: &Regex, text: &str, to: &str) -> Option<String> {
    let mut captures = pattern.create_captures();
    pattern.captures(text, &mut captures);
    if !captures.is_match() {
        return None;
    }
    let mut filled = to.to_owned();
    for group in (0..captures.group_len()).rev() {
        let matched = captures.get_group(group).and_then(|span| text.get(span.range())).unwrap_or_default();
        filled = filled.replace(&format!("{{{group}}}"), matched);
    }
    Some(filled)
}

fn pattern(text: &str) -> Result<Regex, RuleError> {
    regex::compile(text).map_err(|_| RuleError::Pattern(text.to_owned()))
}

fn name(text: &str) -> Result<Name, RuleError> {
    Ok(Name::from_ascii(absolute(text)).map_err(|_| RuleError::Name(text.to_owned()))?.to_lowercase())
}

fn absolute(text: &str) -> String {
    format!("{}.", lower(text).trim_end_matches('.'))
}

fn lower(text: &str) -> String {
    text.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zone::address_data;

    fn rules(lines: &[&str]) -> Vec<Rule> {
        let words = |line: &&str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        lines.iter().map(|line| Rule::read(&words(line)).unwrap()).collect()
    }

    #[test]
    fn names_and_types_change() {
        for (lines, asked, expected) in [
            (&["name www.example.com web.ns.svc.cluster.local"][..], "WWW.example.com.", "web.ns.svc.cluster.local. A"),
            (&["name exact a.test. b.test."], "a.test.", "b.test. A"),
            (&["name exact a.test b.test"], "x.a.test.", "x.a.test. A"),
            (&["name prefix old- new-"], "old-web.test.", "new-web.test. A"),
            (&["name suffix .corp.test .svc.cluster.local"], "web.ns.corp.test.", "web.ns.svc.cluster.local. A"),
            (&["name substring old new"], "x.old.old.test.", "x.new.new.test. A"),
            (
                &[r"name regex (.*)-(us-west-1)\.coredns\.rocks {1}.service.{2}.consul"],
                "ftp-us-west-1.coredns.rocks.",
                "ftp.service.us-west-1.consul. A",
            ),
            (&["type A AAAA"], "a.test.", "a.test. AAAA"),
            (&["name a.test b.test", "name b.test c.test"], "a.test.", "b.test. A"),
            (&["continue name a.test b.test", "stop name b.test c.test"], "a.test.", "c.test. A"),
            (&["name a.test b.test answer auto"], "a.test.", "b.test. A"),
        ] {
            let rules = rules(lines);
            let (name, kind, _) = apply(&rules, &Name::from_ascii(asked).unwrap(), RecordType::A);
            assert_eq!(format!("{name} {kind}"), expected, "{lines:?}");
        }
    }

    #[test]
    fn answers_are_told_under_the_clients_name() {
        let rules = rules(&[
            r"name regex (.*)\.corp\.test {1}.svc.cluster.local answer name (.*)\.svc\.cluster\.local {1}.corp.test",
        ]);
        let client = Name::from_ascii("Web.ns.corp.test.").unwrap();
        let (asked, _, rewritten) = apply(&rules, &client, RecordType::A);
        let record = |name: &Name| Record::from_rdata(name.clone(), 5, address_data([192, 0, 2, 1].into()));
        let other = Name::from_ascii("db.ns.svc.cluster.local.").unwrap();
        let foreign = Name::from_ascii("x.test.").unwrap();
        let mut records = vec![record(&asked), record(&other), record(&foreign)];
        rewritten.undo().apply(&mut records);
        let names: Vec<String> = records.iter().map(|record| record.name.to_ascii()).collect();
        assert_eq!(names, ["Web.ns.corp.test.", "db.ns.corp.test.", "x.test."]);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for (line, expected) in [
            ("", "no rule was given"),
            ("ttl a.test 5", "rules of type \"ttl\" are not supported"),
            ("name a.test", "too few arguments for a name rule"),
            ("name a.test b.test answer value x y", "answer rules of type \"value\" are not supported"),
            ("name a.test b.test more", "unexpected \"more\" after the rule"),
            ("type A B", "invalid type \"B\""),
        ] {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(Rule::read(&words).unwrap_err().to_string(), expected);
        }
    }
}
