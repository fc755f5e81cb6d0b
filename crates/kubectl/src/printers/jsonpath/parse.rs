//! The text of a template -> its nodes.

use super::{JsonPathError, Node, Result};

/// Text and expressions in braces, one after the other.
pub(super) fn template(template: &str) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        if open > 0 {
            nodes.push(Node::Text(rest[..open].to_owned()));
        }
        rest = &rest[open + 1..];
        let mut parser = Parser { text: rest, at: 0 };
        let list = parser.action()?;
        rest = &rest[parser.at..];
        match list.as_slice() {
            [Node::Range, expression @ ..] => {
                nodes.push(Node::Range);
                nodes.push(Node::List(expression.to_vec()));
            }
            [Node::End] => nodes.push(Node::End),
            _ => nodes.push(Node::List(list)),
        }
    }
    if !rest.is_empty() {
        nodes.push(Node::Text(rest.to_owned()));
    }
    Ok(nodes)
}

/// What may be meant by a path without braces, or without its first dot, in the one spelling that is parsed.
pub(crate) fn relaxed(spec: &str) -> Result<String> {
    if spec.is_empty() {
        return Ok(String::new());
    }
    let inner = match spec.strip_prefix('{') {
        Some(s) => s.strip_suffix('}').unwrap_or("{"),
        None => spec,
    };
    let inner = inner.strip_prefix('.').unwrap_or(inner);
    if inner.is_empty() || inner.contains(['{', '}']) {
        return Err(JsonPathError::BadRelaxedPath);
    }
    Ok(format!("{{.{inner}}}"))
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    /// Up to and with the closing brace.
    fn action(&mut self) -> Result<Vec<Node>> {
        let mut nodes = Vec::new();
        loop {
            match self.peek() {
                None => return Err(JsonPathError::UnclosedAction),
                Some('}') => {
                    self.at += 1;
                    return Ok(nodes);
                }
                Some(c) if c.is_whitespace() => self.at += c.len_utf8(),
                Some(_) => self.element(&mut nodes)?,
            }
        }
    }

    fn element(&mut self, nodes: &mut Vec<Node>) -> Result<()> {
        let c = self.peek().ok_or(JsonPathError::UnexpectedEnd)?;
        match c {
            '.' if self.rest().starts_with("..") => {
                self.at += 2;
                nodes.push(Node::Recursive);
                if self.peek().is_some_and(is_name) {
                    nodes.push(Node::Field(self.name()));
                }
            }
            '.' => {
                self.at += 1;
                match self.peek() {
                    Some('*') => {
                        self.at += 1;
                        nodes.push(Node::Wildcard);
                    }
                    Some(c) if is_name(c) || c == '\\' => nodes.push(Node::Field(self.name())),
                    // `{.}` is the object itself.
                    _ => nodes.push(Node::Current),
                }
            }
            '[' => {
                self.at += 1;
                nodes.push(self.bracket()?);
            }
            '$' => {
                self.at += 1;
                nodes.push(Node::Root);
            }
            '@' => {
                self.at += 1;
                nodes.push(Node::Current);
            }
            '*' => {
                self.at += 1;
                nodes.push(Node::Wildcard);
            }
            '"' | '\'' => nodes.push(Node::Text(self.quoted()?)),
            c if c.is_ascii_digit() || c == '+' || c == '-' => nodes.push(Node::Number(self.number()?)),
            c if is_name(c) => {
                let word = self.name();
                match word.as_str() {
                    "range" => nodes.push(Node::Range),
                    "end" => nodes.push(Node::End),
                    "true" => nodes.push(Node::Bool(true)),
                    "false" => nodes.push(Node::Bool(false)),
                    _ => return Err(JsonPathError::UnknownIdentifier(word)),
                }
            }
            c => return Err(JsonPathError::UnknownCharacter(c)),
        }
        Ok(())
    }

    fn name(&mut self) -> String {
        let mut out = String::new();
        while let Some(c) = self.peek() {
            if c == '\\' {
                self.at += 1;
                if let Some(escaped) = self.next() {
                    out.push(escaped);
                }
            } else if is_name(c) {
                out.push(c);
                self.at += c.len_utf8();
            } else {
                break;
            }
        }
        out
    }

    fn number(&mut self) -> Result<serde_json::Number> {
        let end = self
            .rest()
            .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-' | 'e' | 'E')))
            .unwrap_or(self.rest().len());
        let word = self.rest()[..end].to_owned();
        self.at += end;
        let bare = word.strip_prefix('+').unwrap_or(&word);
        serde_json::from_str(bare).map_err(|_| JsonPathError::BadNumber(word))
    }

    fn quoted(&mut self) -> Result<String> {
        let quote = self.next().ok_or(JsonPathError::UnexpectedEnd)?;
        let mut out = String::new();
        while let Some(c) = self.next() {
            if c == quote {
                return Ok(out);
            }
            if c == '\\' {
                match self.next() {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some('r') => out.push('\r'),
                    Some('u') => {
                        let hex: String = self.rest().chars().take(4).collect();
                        self.at += hex.len();
                        out.extend(u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32));
                    }
                    Some(other) => out.push(other),
                    None => break,
                }
            } else {
                out.push(c);
            }
        }
        Err(JsonPathError::Unterminated("quoted string"))
    }

    /// The inside of `[…]`, up to the bracket that closes it.
    fn bracket(&mut self) -> Result<Node> {
        let mut depth = 1;
        let mut quote = None;
        let mut end = None;
        for (i, c) in self.rest().char_indices() {
            match (quote, c) {
                (Some(q), c) if c == q => quote = None,
                (Some(_), _) => {}
                (None, '\'' | '"') => quote = Some(c),
                (None, '[') => depth += 1,
                (None, ']') => {
                    depth -= 1;
                    if depth == 0 {
                        end = Some(i);
                        break;
                    }
                }
                _ => {}
            }
        }
        let end = end.ok_or(JsonPathError::Unterminated("array"))?;
        let inside = self.rest()[..end].to_owned();
        self.at += end + 1;
        bracket_node(inside.trim())
    }
}

fn bracket_node(inside: &str) -> Result<Node> {
    if inside == "*" {
        return Ok(Node::Wildcard);
    }
    if let Some(filter) = inside.strip_prefix("?(") {
        let filter = filter.strip_suffix(')').ok_or(JsonPathError::Unterminated("filter"))?;
        return filter_node(filter);
    }
    let parts = split_outside_quotes(inside, ',');
    if parts.len() > 1 {
        let mut lists = Vec::new();
        for part in parts {
            lists.push(vec![bracket_node(part.trim())?]);
        }
        return Ok(Node::Union(lists));
    }
    // Only these quotes make a name; others are no number, and end below.
    if let Some(name) = inside.strip_prefix('\'') {
        let name = name.strip_suffix('\'').ok_or(JsonPathError::Unterminated("quoted string"))?;
        // Dots are escaped inside quotes too, as the documentation of jsonpath shows them.
        return Ok(Node::Field(name.replace('\\', "")));
    }
    let bounds: Vec<&str> = inside.split(':').map(str::trim).collect();
    let number = |s: &str| -> Result<Option<i64>> {
        if s.is_empty() {
            return Ok(None);
        }
        s.parse().map(Some).map_err(|_| JsonPathError::BadIndex(inside.to_owned()))
    };
    match bounds.as_slice() {
        [one] => {
            let start = number(one)?.ok_or_else(|| JsonPathError::BadIndex(String::new()))?;
            Ok(Node::Slice { start: Some(start), end: None, step: None, single: true })
        }
        [start, end] => Ok(Node::Slice { start: number(start)?, end: number(end)?, step: None, single: false }),
        [start, end, step] => {
            Ok(Node::Slice { start: number(start)?, end: number(end)?, step: number(step)?, single: false })
        }
        _ => Err(JsonPathError::BadIndex(inside.to_owned())),
    }
}

fn filter_node(filter: &str) -> Result<Node> {
    let parse = |text: &str| -> Result<Vec<Node>> {
        let closed = format!("{}}}", text.trim());
        Parser { text: &closed, at: 0 }.action()
    };
    let mut quote = None;
    for (i, c) in filter.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '=' | '!' | '<' | '>') => {
                let two = filter.get(i..i + 2).unwrap_or("");
                let operator = if matches!(two, "==" | "!=" | "<=" | ">=") { two } else { &filter[i..i + 1] };
                return Ok(Node::Filter {
                    left: parse(&filter[..i])?,
                    operator: operator.to_owned(),
                    right: parse(&filter[i + operator.len()..])?,
                });
            }
            _ => {}
        }
    }
    Ok(Node::Filter { left: parse(filter)?, operator: "exists".to_owned(), right: Vec::new() })
}

fn split_outside_quotes(text: &str, separator: char) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut quote = None;
    let mut start = 0;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, c) if c == separator => {
                parts.push(&text[start..i]);
                start = i + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn is_name(c: char) -> bool {
    !c.is_whitespace()
        && !matches!(
            c,
            '.' | '['
                | ']'
                | '{'
                | '}'
                | '('
                | ')'
                | '"'
                | '\''
                | '$'
                | '@'
                | ','
                | '='
                | '!'
                | '<'
                | '>'
                | ':'
                | '*'
                | '\\'
                | '+'
        )
}
