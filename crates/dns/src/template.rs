//! Answers made from their questions: `template` of a Corefile. Pure.

use std::str::FromStr;

use cel::regex::{self, Regex};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::settings::Fallthrough;
use crate::zone::Outcome;

/// Of a record that says nothing of it.
const DEFAULT_TTL: u32 = 3600;

#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) zones: Vec<Name>,
    /// None: of any type.
    kind: Option<RecordType>,
    matches: Vec<Regex>,
    answers: Vec<Text>,
    additionals: Vec<Text>,
    authorities: Vec<Text>,
    code: ResponseCode,
    pub(crate) fallthrough: Fallthrough,
}

/// A record as text with places to fill in.
type Text = Vec<Piece>;

#[derive(Debug, PartialEq)]
enum Piece {
    Plain(String),
    Name,
    Zone,
    Class,
    Type,
    /// What a named group of the pattern matched.
    Group(String),
    /// What a group matched, by its number.
    Match(usize),
}

/// What a template is filled with.
struct Data<'a> {
    name: String,
    zone: &'a Name,
    kind: RecordType,
    pattern: Option<&'a Regex>,
}

/// Why a line is no part of a template.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("invalid RR class {0}")]
    Type(String),
    #[error("could not parse regex: {0}")]
    Pattern(String),
    #[error("unknown rcode {0}")]
    Code(String),
    #[error("an action has no end")]
    NoEnd,
    #[error("{{{{{0}}}}} is not supported")]
    Action(String),
}

impl Template {
    pub(crate) fn new(kind: &str) -> Result<Template, TemplateError> {
        let kind = match kind.to_ascii_uppercase().as_str() {
            "ANY" => None,
            name => Some(RecordType::from_str(name).map_err(|_| TemplateError::Type(kind.to_owned()))?),
        };
        Ok(Template {
            zones: Vec::new(),
            kind,
            matches: Vec::new(),
            answers: Vec::new(),
            additionals: Vec::new(),
            authorities: Vec::new(),
            code: ResponseCode::NoError,
            fallthrough: Fallthrough::default(),
        })
    }

    pub(crate) fn add_match(&mut self, pattern: &str) -> Result<(), TemplateError> {
        self.matches.push(regex::compile(pattern).map_err(|_| TemplateError::Pattern(pattern.to_owned()))?);
        Ok(())
    }

    pub(crate) fn add_answer(&mut self, text: &str) -> Result<(), TemplateError> {
        self.answers.push(pieces(text)?);
        Ok(())
    }

    pub(crate) fn add_additional(&mut self, text: &str) -> Result<(), TemplateError> {
        self.additionals.push(pieces(text)?);
        Ok(())
    }

    pub(crate) fn add_authority(&mut self, text: &str) -> Result<(), TemplateError> {
        self.authorities.push(pieces(text)?);
        Ok(())
    }

    pub(crate) fn set_code(&mut self, text: &str) -> Result<(), TemplateError> {
        self.code = match text.to_ascii_uppercase().as_str() {
            "NOERROR" => ResponseCode::NoError,
            "FORMERR" => ResponseCode::FormErr,
            "SERVFAIL" => ResponseCode::ServFail,
            "NXDOMAIN" => ResponseCode::NXDomain,
            "NOTIMP" => ResponseCode::NotImp,
            "REFUSED" => ResponseCode::Refused,
            _ => return Err(TemplateError::Code(text.to_owned())),
        };
        Ok(())
    }

    pub(crate) fn answer(&self, name: &Name, kind: RecordType) -> Outcome {
        let zone = self.zones.iter().filter(|zone| zone.zone_of(name)).max_by_key(|zone| zone.num_labels());
        let (Some(zone), true) = (zone, self.kind.is_none_or(|own| own == kind)) else { return Outcome::Elsewhere };
        let text = name.to_lowercase().to_ascii();
        let pattern = self.matches.iter().find(|pattern| pattern.is_match(&text));
        if pattern.is_none() && !self.matches.is_empty() {
            return match self.fallthrough.has(name) {
                true => Outcome::Elsewhere,
                false => Outcome::Failed(ResponseCode::NXDomain),
            };
        }
        let data = Data { name: text, zone, kind, pattern };
        let records =
            |texts: &[Text]| -> Option<Vec<Record>> { texts.iter().map(|text| record(&data.fill(text))).collect() };
        match (records(&self.answers), records(&self.additionals), records(&self.authorities)) {
            (Some(answers), Some(additionals), Some(authorities)) => {
                Outcome::Composed { code: self.code, answers, additionals, authorities }
            }
            // What was filled in makes no record.
            _ => Outcome::Failed(ResponseCode::ServFail),
        }
    }
}

impl Data<'_> {
    fn fill(&self, text: &Text) -> String {
        let captures = self.pattern.map(|pattern| {
            let mut captures = pattern.create_captures();
            pattern.captures(&self.name, &mut captures);
            captures
        });
        let captures = captures.as_ref();
        let matched = |range: Option<std::ops::Range<usize>>| {
            range.and_then(|range| self.name.get(range)).unwrap_or_default().to_owned()
        };
        let fill = |piece: &Piece| match piece {
            Piece::Plain(text) => text.clone(),
            Piece::Name => self.name.clone(),
            Piece::Zone => self.zone.to_ascii(),
            Piece::Class => "IN".to_owned(),
            Piece::Type => self.kind.to_string(),
            Piece::Group(name) => matched(captures.and_then(|c| c.get_group_by_name(name)).map(|span| span.range())),
            Piece::Match(number) => matched(captures.and_then(|c| c.get_group(*number)).map(|span| span.range())),
        };
        text.iter().map(fill).collect()
    }
}

/// Splits at the actions of Go's templates, as far as questions have them.
fn pieces(text: &str) -> Result<Text, TemplateError> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((plain, after)) = rest.split_once("{{") {
        let Some((action, after)) = after.split_once("}}") else { return Err(TemplateError::NoEnd) };
        pieces.push(Piece::Plain(plain.to_owned()));
        let words: Vec<&str> = action.split_whitespace().collect();
        let unsupported = || TemplateError::Action(action.to_owned());
        pieces.push(match words.as_slice() {
            [".Name"] | [".Question.Name"] => Piece::Name,
            [".Zone"] => Piece::Zone,
            [".Class"] => Piece::Class,
            [".Type"] => Piece::Type,
            ["index", ".Match", number] => Piece::Match(number.parse().map_err(|_| unsupported())?),
            ["index", ".Group", name] => Piece::Group(name.trim_matches('"').to_owned()),
            [one] => Piece::Group(one.strip_prefix(".Group.").ok_or_else(unsupported)?.to_owned()),
            _ => return Err(unsupported()),
        });
        rest = after;
    }
    pieces.push(Piece::Plain(rest.to_owned()));
    Ok(pieces)
}

/// `name [ttl] [class] type data`.
fn record(text: &str) -> Option<Record> {
    let (name, mut rest) = text.trim().split_once(char::is_whitespace)?;
    let mut ttl = DEFAULT_TTL;
    loop {
        let (word, after) = rest.trim_start().split_once(char::is_whitespace)?;
        if let Ok(seconds) = word.parse() {
            ttl = seconds;
        } else if !word.eq_ignore_ascii_case("IN") {
            let kind = RecordType::from_str(&word.to_ascii_uppercase()).ok()?;
            let name = Name::from_ascii(format!("{}.", name.trim_end_matches('.'))).ok()?;
            return Some(Record::from_rdata(name, ttl, RData::try_from_str(kind, after.trim()).ok()?));
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(template: &Template, name: &str, kind: RecordType) -> String {
        match template.answer(&Name::from_ascii(name).unwrap(), kind) {
            Outcome::Composed { code, answers, authorities, .. } => {
                let show = |record: &Record| format!("{} {} {}", record.name, record.ttl, record.data);
                let all: Vec<String> = answers.iter().chain(&authorities).map(show).collect();
                format!("{code:?} {}", all.join(" | "))
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn answers_are_made_from_questions() {
        use RecordType::{A, AAAA, MX, TXT};
        let mut template = Template::new("A").unwrap();
        template.zones = vec![Name::from_ascii("example.").unwrap()];
        template.add_match(r"(^|[.])ip-10-(?P<b>[0-9]*)-(?P<c>[0-9]*)-(?P<d>[0-9]*)[.]example[.]$").unwrap();
        template.add_answer("{{ .Name }} 60 IN A 10.{{ .Group.b }}.{{ .Group.c }}.{{ index .Match 4 }}").unwrap();
        for (name, kind, expected) in [
            ("ip-10-1-2-3.example.", A, "NoError ip-10-1-2-3.example. 60 10.1.2.3"),
            ("a.ip-10-1-2-3.example.", A, "NoError a.ip-10-1-2-3.example. 60 10.1.2.3"),
            ("ip-10-1-2-3.example.", AAAA, "Elsewhere"),
            ("ip-10-1-2-3.other.", A, "Elsewhere"),
            ("ip-10-1-2-999.example.", A, "Failed(ServFail)"),
            ("x.example.", A, "Failed(NXDomain)"),
        ] {
            assert_eq!(ask(&template, name, kind), expected, "{name} {kind}");
        }
        template.fallthrough = Fallthrough(vec![Name::root()]);
        assert_eq!(ask(&template, "x.example.", A), "Elsewhere");

        let mut all = Template::new("ANY").unwrap();
        all.zones = vec![Name::from_ascii("invalid.").unwrap()];
        all.set_code("NXDOMAIN").unwrap();
        all.add_authority("{{ .Zone }} 60 {{ .Class }} SOA ns.{{ .Zone }} coredns.{{ .Zone }} (1 60 60 60 60)")
            .unwrap();
        let soa = "NXDomain invalid. 60 ns.invalid. coredns.invalid. 1 60 60 60 60";
        assert_eq!(ask(&all, "x.invalid.", MX), soa);
        let mut text = Template::new("TXT").unwrap();
        text.zones = vec![Name::root()];
        text.add_answer("{{ .Name }} TXT \"{{ .Type }} of {{ .Name }}\"").unwrap();
        assert_eq!(ask(&text, "a.b.", TXT), "NoError a.b. 3600 TXT of a.b.");
    }
}
