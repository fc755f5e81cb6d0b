//! Label selectors, in the query-string form and in the `LabelSelector` form of objects.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::ParseError;
use crate::field::{FieldError, aggregate, quote};
use crate::sort::CompactSort as _;
use crate::validation;

/// A conjunction of requirements on labels, or nothing at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Sorted by key.
    requirements: Vec<Requirement>,
    matches_nothing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    Equals,
    DoubleEquals,
    NotEquals,
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

impl Selector {
    pub fn everything() -> Self {
        Self::default()
    }

    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), matches_nothing: true }
    }

    /// Parses a query-string selector such as `app=web,tier in (a,b),!old,version>3`.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut parser = Parser { tokens: lex(text), position: 0 };
        let mut requirements = parser.parse()?;
        requirements.compact_sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements, matches_nothing: false })
    }

    /// Labels that must all be there with these values (a Service's or ReplicationController's selector).
    pub fn from_map(labels: &BTreeMap<String, String>) -> Self {
        let requirements = labels
            .iter()
            .map(|(key, value)| Requirement {
                key: key.clone(),
                operator: Operator::Equals,
                values: vec![value.clone()],
            })
            .collect();
        Self { requirements, matches_nothing: false }
    }

    /// From an object's selector: absent selects nothing, empty selects everything.
    pub fn from_label_selector(selector: Option<&LabelSelector>) -> Result<Self, ParseError> {
        let Some(selector) = selector else {
            return Ok(Self::nothing());
        };
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements.push(Requirement::new(key, Operator::Equals, vec![value.clone()])?);
        }
        for expression in selector.match_expressions.iter().flatten() {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(ParseError(format!("{} is not a valid label selector operator", quote(other))));
                }
            };
            let values = expression.values.clone().unwrap_or_default();
            requirements.push(Requirement::new(&expression.key, operator, values)?);
        }
        requirements.compact_sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements, matches_nothing: false })
    }

    /// Also demands `requirement`.
    pub fn with(mut self, requirement: Requirement) -> Self {
        self.requirements.push(requirement);
        self.requirements.compact_sort_by(|a, b| a.key.cmp(&b.key));
        self
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// True when it selects everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty() && !self.matches_nothing
    }

    pub fn matches_nothing(&self) -> bool {
        self.matches_nothing
    }

    /// An object without labels is matched like one with an empty map.
    pub fn matches(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.matches_with(|key| labels.and_then(|labels| labels.get(key)).map(String::as_str))
    }

    /// For labels kept in another form than a map.
    pub fn matches_with<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.matches_nothing && self.requirements.iter().all(|requirement| requirement.matches(get(&requirement.key)))
    }

    /// The value a label must have, if the selector pins it.
    pub fn requires(&self, key: &str) -> Option<&str> {
        let requirement = self.requirements.iter().find(|requirement| requirement.key == key)?;
        match (requirement.operator, requirement.values.as_slice()) {
            (Operator::Equals | Operator::DoubleEquals | Operator::In, [only]) => Some(only),
            _ => None,
        }
    }
}

impl Requirement {
    /// Checks key, operator and values against each other and against the label rules.
    pub fn new(key: &str, operator: Operator, values: Vec<String>) -> Result<Self, ParseError> {
        let mut errors = Vec::new();
        if let Some(error) = key_error("key", key) {
            errors.push(error);
        }
        let complaint = match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                Some("for 'in', 'notin' operators, values set can't be empty")
            }
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
                Some("exact-match compatibility requires one single value")
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                Some("values set must be empty for exists and does not exist")
            }
            Operator::GreaterThan | Operator::LessThan if values.len() != 1 => {
                Some("for 'Gt', 'Lt' operators, exactly one value is required")
            }
            _ => None,
        };
        if let Some(complaint) = complaint {
            errors.push(FieldError::invalid("values", &values, complaint).to_string());
        }
        if matches!(operator, Operator::GreaterThan | Operator::LessThan) {
            for (i, value) in values.iter().enumerate().filter(|(_, value)| value.parse::<i64>().is_err()) {
                let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                errors.push(FieldError::invalid(format!("values[{i}]"), value, detail).to_string());
            }
        }
        for (i, value) in values.iter().enumerate() {
            let messages = validation::label_value(value);
            if !messages.is_empty() {
                let path = format!("values[{i}][{key}]");
                errors.push(FieldError::invalid(path, value, messages.join("; ")).to_string());
            }
        }
        if errors.is_empty() {
            Ok(Self { key: key.to_owned(), operator, values })
        } else {
            Err(ParseError(aggregate(&errors)))
        }
    }

    pub fn matches(&self, value: Option<&str>) -> bool {
        let has = |value: &str| self.values.iter().any(|wanted| wanted == value);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => value.is_some_and(has),
            Operator::NotIn | Operator::NotEquals => !value.is_some_and(has),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                let bound = self.values.first().and_then(|bound| bound.parse::<i64>().ok());
                match (value.and_then(|value| value.parse::<i64>().ok()), bound) {
                    (Some(value), Some(bound)) if self.operator == Operator::GreaterThan => value > bound,
                    (Some(value), Some(bound)) => value < bound,
                    _ => false,
                }
            }
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.compact_sort();
        let (key, values) = (&self.key, values.join(","));
        match self.operator {
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

impl std::str::FromStr for Selector {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::parse(text)
    }
}

fn key_error(path: &str, key: &str) -> Option<String> {
    let messages = validation::qualified_name(key);
    (!messages.is_empty()).then(|| FieldError::invalid(path, key, messages.join("; ")).to_string())
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Error(String),
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Word(String),
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Error(text) | Self::Word(text) => text,
            Self::End => "",
            Self::Close => ")",
            Self::Comma => ",",
            Self::Not => "!",
            Self::DoubleEquals => "==",
            Self::Equals => "=",
            Self::Greater => ">",
            Self::In => "in",
            Self::Less => "<",
            Self::NotEquals => "!=",
            Self::NotIn => "notin",
            Self::Open => "(",
        }
    }

    fn symbol(text: &str) -> Option<Self> {
        Some(match text {
            ")" => Self::Close,
            "," => Self::Comma,
            "!" => Self::Not,
            "==" => Self::DoubleEquals,
            "=" => Self::Equals,
            ">" => Self::Greater,
            "<" => Self::Less,
            "!=" => Self::NotEquals,
            "(" => Self::Open,
            _ => return None,
        })
    }

    /// The error of finding this token where others belong.
    fn instead_of(&self, expected: &str) -> ParseError {
        ParseError(format!("found '{}', expected: {expected}", self.text()))
    }
}

/// Cuts the text into tokens; the last one is always [`Token::End`].
fn lex(text: &str) -> Vec<Token> {
    let special = |c: char| matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<');
    let blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(blank);
        // A NUL byte ends the input, as it does upstream.
        let Some(first) = rest.chars().next().filter(|&c| c != '\0') else {
            tokens.push(Token::End);
            return tokens;
        };
        if special(first) {
            // The longest symbol of at most two characters.
            let two = rest.get(..2).and_then(Token::symbol);
            let token = two.map(|token| (token, 2)).or_else(|| Token::symbol(&rest[..1]).map(|token| (token, 1)));
            let (token, length) = token.unwrap_or((Token::Error(rest.to_owned()), rest.len()));
            tokens.push(token);
            rest = &rest[length..];
        } else {
            let end = rest.find(|c: char| special(c) || blank(c) || c == '\0').unwrap_or(rest.len());
            tokens.push(match &rest[..end] {
                "in" => Token::In,
                "notin" => Token::NotIn,
                word => Token::Word(word.to_owned()),
            });
            rest = &rest[end..];
        }
    }
}

struct Parser {
    tokens: Vec<Token>,
    position: usize,
}

impl Parser {
    /// The next token where a value may stand: there, `in` and `notin` are ordinary words.
    fn peek(&self) -> Token {
        match self.tokens.get(self.position) {
            Some(token @ (Token::In | Token::NotIn)) => Token::Word(token.text().to_owned()),
            Some(token) => token.clone(),
            None => Token::End,
        }
    }

    fn next(&mut self) -> Token {
        let token = self.peek();
        self.position += 1;
        token
    }

    fn parse(&mut self) -> Result<Vec<Requirement>, ParseError> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                Token::Word(_) | Token::Not => {
                    let requirement = self
                        .requirement()
                        .map_err(|error| ParseError(format!("unable to parse requirement: {error}")))?;
                    requirements.push(requirement);
                    match self.next() {
                        Token::End => return Ok(requirements),
                        Token::Comma => match self.peek() {
                            Token::Word(_) | Token::Not => {}
                            other => {
                                return Err(other.instead_of("identifier after ','"));
                            }
                        },
                        other => {
                            return Err(other.instead_of("',' or 'end of string'"));
                        }
                    }
                }
                Token::End => return Ok(requirements),
                other => {
                    return Err(other.instead_of("!, identifier, or 'end of string'"));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, ParseError> {
        let mut token = self.next();
        let negated = token == Token::Not;
        if negated {
            token = self.next();
        }
        let Token::Word(key) = token else {
            return Err(token.instead_of("identifier"));
        };
        // Upstream checks the key before it knows its path, and prints that missing path.
        if let Some(error) = key_error("<nil>", &key) {
            return Err(ParseError(error));
        }
        let requirement = |operator, values| Requirement::new(&key, operator, values);
        if negated {
            return requirement(Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek(), Token::End | Token::Comma) {
            return requirement(Operator::Exists, Vec::new());
        }
        let token = self.tokens.get(self.position).cloned().unwrap_or(Token::End);
        self.position += 1;
        let operator = match token {
            Token::In => Operator::In,
            Token::NotIn => Operator::NotIn,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            other => {
                return Err(other.instead_of("in, notin, =, ==, !=, gt, lt"));
            }
        };
        let mut values = match operator {
            Operator::In | Operator::NotIn => self.value_list()?,
            _ => vec![self.value()?],
        };
        values.compact_sort();
        values.dedup();
        requirement(operator, values)
    }

    fn value(&mut self) -> Result<String, ParseError> {
        match self.peek() {
            Token::End | Token::Comma => Ok(String::new()),
            Token::Word(word) => {
                self.position += 1;
                Ok(word)
            }
            other => Err(other.instead_of("identifier")),
        }
    }

    /// `(a,b)`; empty places between commas are empty values.
    fn value_list(&mut self) -> Result<Vec<String>, ParseError> {
        match self.next() {
            Token::Open => {}
            other => return Err(ParseError(format!("found '{}' expected: '('", other.text()))),
        }
        let mut values = Vec::new();
        match self.peek() {
            Token::Word(_) | Token::Comma => {}
            Token::Close => {
                self.position += 1;
                return Ok(vec![String::new()]);
            }
            other => {
                return Err(other.instead_of("',', ')' or identifier"));
            }
        }
        loop {
            match self.next() {
                Token::Word(word) => {
                    values.push(word);
                    match self.peek() {
                        Token::Comma => {}
                        Token::Close => break,
                        other => {
                            return Err(other.instead_of("',' or ')'"));
                        }
                    }
                }
                Token::Comma => {
                    if values.is_empty() {
                        values.push(String::new());
                    }
                    match self.peek() {
                        Token::Close => {
                            values.push(String::new());
                            break;
                        }
                        Token::Comma => values.push(String::new()),
                        _ => {}
                    }
                }
                other => {
                    return Err(other.instead_of("',', or identifier"));
                }
            }
        }
        self.position += 1; // the closing parenthesis
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_every_form() {
        for (text, expected) in [
            ("", ""),
            ("a", "a"),
            ("!a", "!a"),
            ("a=b", "a=b"),
            ("a==b", "a==b"),
            ("a != b", "a!=b"),
            ("a in (z,b)", "a in (b,z)"),
            ("a notin (b)", "a notin (b)"),
            ("a>1", "a>1"),
            ("a<1", "a<1"),
            ("b,a=1", "a=1,b"),
            ("a=", "a="),
            ("a=,b", "a=,b"),
            ("a in ()", "a in ()"),
            ("a in (,b)", "a in (,b)"),
            ("in in (in)", "in in (in)"),
            ("  a   ", "a"),
        ] {
            assert_eq!(Selector::parse(text).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn refuses_with_upstreams_words() {
        for (text, expected) in [
            ("a,", "found '', expected: identifier after ','"),
            ("=", "found '=', expected: !, identifier, or 'end of string'"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            ("!", "unable to parse requirement: found '', expected: identifier"),
        ] {
            assert_eq!(Selector::parse(text).unwrap_err().0, expected, "{text}");
        }
        assert!(Selector::parse("a=b c").unwrap_err().0.contains("expected: ',' or 'end of string'"));
        let bad_key = Selector::parse("-a=b").unwrap_err().0;
        assert!(
            bad_key.starts_with("unable to parse requirement: <nil>: Invalid value: \"-a\": name part must"),
            "{bad_key}"
        );
    }

    #[test]
    fn matches_labels() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned()), ("n".to_owned(), "5".to_owned())]);
        for (text, expected) in [
            ("app=web", true),
            ("app!=web", false),
            ("missing!=web", true),
            ("app in (a,web)", true),
            ("missing notin (a)", true),
            ("app,!missing", true),
            ("n>4,n<6", true),
            ("app>4", false),
            ("", true),
        ] {
            assert_eq!(Selector::parse(text).unwrap().matches(Some(&labels)), expected, "{text}");
        }
        assert!(!Selector::nothing().matches(Some(&labels)));
        assert!(!Selector::from_label_selector(None).unwrap().matches(Some(&labels)));
        assert!(Selector::from_label_selector(Some(&LabelSelector::default())).unwrap().matches(None));
        assert_eq!(Selector::parse("app=web").unwrap().requires("app"), Some("web"));
    }
}
