//! Template text -> tree.

use std::collections::HashMap;

use serde_json::Value;

use super::error::{Mistake, ParseError};
use super::functions;
use super::{Node, Operand, Pipeline, Template};

#[derive(Debug, Clone, PartialEq)]
enum Token {
    /// `.a.b` (empty for a lone dot)
    Field(Vec<String>),
    /// `$x.a`
    Variable(String, Vec<String>),
    Constant(Value),
    Word(String),
    Pipe,
    Declare,
    Assign,
    Comma,
    Open,
    /// `)` with the fields that follow it
    Close(Vec<String>),
}

enum Piece {
    Text(String),
    Action(Vec<Token>, usize),
}

pub(super) fn parse(text: &str) -> Result<Template, ParseError> {
    let pieces = split(text)?;
    let mut p = Parser { pieces, at: 0, defined: HashMap::new(), variables: vec!["$".to_owned()], ranges: 0 };
    let (main, end) = p.list()?;
    if let Some((word, line)) = end {
        return Err(Mistake::UnexpectedAction(word).at(line));
    }
    Ok(Template { main, defined: p.defined })
}

fn split(text: &str) -> Result<Vec<Piece>, ParseError> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut line = 1;
    let mut trim_next = false;
    loop {
        let Some(open) = rest.find("{{") else {
            let tail = if trim_next { rest.trim_start() } else { rest };
            if !tail.is_empty() {
                pieces.push(Piece::Text(tail.to_owned()));
            }
            return Ok(pieces);
        };
        let mut before = &rest[..open];
        line += before.matches('\n').count();
        if trim_next {
            before = before.trim_start();
        }
        let mut inside = &rest[open + 2..];
        if inside.starts_with('-') && inside[1..].starts_with(char::is_whitespace) {
            before = before.trim_end();
            inside = &inside[1..];
        }
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_owned()));
        }
        if inside.trim_start().starts_with("/*") {
            let close = inside.find("*/").ok_or_else(|| Mistake::UnclosedComment.at(line))?;
            let after = inside[close + 2..].trim_start();
            trim_next = after.starts_with('-');
            let after = after.strip_prefix('-').unwrap_or(after);
            rest = after.strip_prefix("}}").ok_or_else(|| Mistake::CommentNotAlone.at(line))?;
            continue;
        }
        let (tokens, used, trim) = tokens(inside, line)?;
        pieces.push(Piece::Action(tokens, line));
        line += inside[..used].matches('\n').count();
        rest = &inside[used..];
        trim_next = trim;
    }
}

/// Reads up to and with `}}`; returns the tokens, the bytes used and whether the right side is trimmed.
fn tokens(text: &str, line: usize) -> Result<(Vec<Token>, usize, bool), ParseError> {
    let mut out = Vec::new();
    let mut i = 0;
    loop {
        let rest = &text[i..];
        if rest.starts_with("}}") {
            return Ok((out, i + 2, false));
        }
        let Some(c) = rest.chars().next() else {
            return Err(Mistake::UnclosedAction.at(line));
        };
        if c.is_whitespace() {
            if rest[c.len_utf8()..].starts_with("-}}") {
                return Ok((out, i + c.len_utf8() + 3, true));
            }
            i += c.len_utf8();
            continue;
        }
        match c {
            '|' => {
                out.push(Token::Pipe);
                i += 1;
            }
            ',' => {
                out.push(Token::Comma);
                i += 1;
            }
            '(' => {
                out.push(Token::Open);
                i += 1;
            }
            ')' => {
                i += 1;
                let (fields, used) = fields(&text[i..]);
                i += used;
                out.push(Token::Close(fields));
            }
            ':' if rest.starts_with(":=") => {
                out.push(Token::Declare);
                i += 2;
            }
            '=' => {
                out.push(Token::Assign);
                i += 1;
            }
            '.' if !rest[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                let (names, used) = fields(rest);
                i += used.max(1);
                out.push(Token::Field(names));
            }
            '$' => {
                let name: String = rest.chars().skip(1).take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                i += 1 + name.len();
                let (names, used) = fields(&text[i..]);
                i += used;
                out.push(Token::Variable(format!("${name}"), names));
            }
            '"' | '`' | '\'' => {
                let (constant, used) = quoted(rest, c).ok_or_else(|| {
                    let kind = match c {
                        '"' => "quoted string",
                        '`' => "raw quoted string",
                        _ => "character constant",
                    };
                    Mistake::Unterminated(kind).at(line)
                })?;
                i += used;
                out.push(Token::Constant(constant));
            }
            c if c.is_ascii_digit() || matches!(c, '+' | '-' | '.') => {
                let end = rest
                    .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_')))
                    .unwrap_or(rest.len());
                let word = rest[..end].replace('_', "");
                let plain = word.strip_prefix('+').unwrap_or(&word);
                let number = match plain.strip_prefix("0x") {
                    Some(hex) => i64::from_str_radix(hex, 16).ok().map(Value::from),
                    None => serde_json::from_str::<serde_json::Number>(plain).ok().map(Value::Number),
                };
                out.push(Token::Constant(number.ok_or_else(|| Mistake::BadNumber(word).at(line))?));
                i += end;
            }
            c if c.is_alphabetic() || c == '_' => {
                let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
                out.push(match &rest[..end] {
                    "true" => Token::Constant(Value::Bool(true)),
                    "false" => Token::Constant(Value::Bool(false)),
                    word => Token::Word(word.to_owned()),
                });
                i += end;
            }
            c => return Err(Mistake::UnknownCharacter(c).at(line)),
        }
    }
}

/// `.a.b` at the start of the text.
fn fields(text: &str) -> (Vec<String>, usize) {
    let mut names = Vec::new();
    let mut used = 0;
    while let Some(rest) = text[used..].strip_prefix('.') {
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        if end == 0 {
            break;
        }
        names.push(rest[..end].to_owned());
        used += 1 + end;
    }
    (names, used)
}

fn quoted(text: &str, quote: char) -> Option<(Value, usize)> {
    let mut out = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((i, c)) = chars.next() {
        if c == quote {
            let value = if quote == '\'' { Value::from(out.chars().next()? as u32) } else { Value::String(out) };
            return Some((value, i + 1));
        }
        if c == '\\' && quote != '`' {
            match chars.next()?.1 {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'a' => out.push('\x07'),
                'b' => out.push('\x08'),
                'f' => out.push('\x0c'),
                'v' => out.push('\x0b'),
                'u' => {
                    let hex: String = chars.by_ref().take(4).map(|(_, c)| c).collect();
                    out.push(char::from_u32(u32::from_str_radix(&hex, 16).ok()?)?);
                }
                'x' => {
                    let hex: String = chars.by_ref().take(2).map(|(_, c)| c).collect();
                    out.push(char::from(u8::from_str_radix(&hex, 16).ok()?));
                }
                other => out.push(other),
            }
        } else {
            out.push(c);
        }
    }
    None
}

struct Parser {
    pieces: Vec<Piece>,
    at: usize,
    defined: HashMap<String, Vec<Node>>,
    variables: Vec<String>,
    ranges: usize,
}

/// `end` or `else …`, with what followed it.
type Stop = Option<(String, usize)>;

impl Parser {
    /// Nodes up to `{{end}}`, `{{else}}` or the end of the text.
    fn list(&mut self) -> Result<(Vec<Node>, Stop), ParseError> {
        let mut nodes = Vec::new();
        while self.at < self.pieces.len() {
            let index = self.at;
            self.at += 1;
            let (tokens, line) = match &self.pieces[index] {
                Piece::Text(t) => {
                    nodes.push(Node::Text(t.clone()));
                    continue;
                }
                Piece::Action(tokens, line) => (tokens.clone(), *line),
            };
            let word = match tokens.first() {
                Some(Token::Word(w)) => w.as_str(),
                _ => "",
            };
            match word {
                "end" => return Ok((nodes, Some(("end".to_owned(), line)))),
                "else" => {
                    // `else if` is an if of its own inside the else branch.
                    self.at -= 1;
                    return Ok((nodes, Some(("else".to_owned(), line))));
                }
                "if" | "with" | "range" => nodes.push(self.control(word, &tokens[1..], line)?),
                "break" | "continue" => {
                    if self.ranges == 0 {
                        return Err(Mistake::OutsideRange(word.to_owned()).at(line));
                    }
                    nodes.push(if word == "break" { Node::Break } else { Node::Continue });
                }
                "define" | "block" => {
                    let Some(Token::Constant(Value::String(name))) = tokens.get(1).cloned() else {
                        return Err(Mistake::NameNeeded(word.to_owned()).at(line));
                    };
                    let (body, stop) = self.list()?;
                    self.expect_end(stop)?;
                    self.defined.insert(name.clone(), body);
                    if word == "block" {
                        let data = self.pipeline(&tokens[2..], line)?;
                        nodes.push(Node::Template { name, data: Some(data) });
                    }
                }
                "template" => {
                    let Some(Token::Constant(Value::String(name))) = tokens.get(1).cloned() else {
                        return Err(Mistake::NameNeeded("template".to_owned()).at(line));
                    };
                    let data = if tokens.len() > 2 { Some(self.pipeline(&tokens[2..], line)?) } else { None };
                    nodes.push(Node::Template { name, data });
                }
                _ => {
                    let pipeline = self.pipeline(&tokens, line)?;
                    nodes.push(Node::Action(pipeline));
                }
            }
        }
        Ok((nodes, None))
    }

    fn expect_end(&self, stop: Stop) -> Result<(), ParseError> {
        match stop {
            Some((word, _)) if word == "end" => Ok(()),
            Some((word, line)) => Err(Mistake::UnexpectedAction(word).at(line)),
            None => Err(Mistake::UnexpectedEnd.at(1)),
        }
    }

    fn control(&mut self, word: &str, head: &[Token], line: usize) -> Result<Node, ParseError> {
        let scope = self.variables.len();
        let pipeline = self.pipeline(head, line)?;
        if pipeline.commands.is_empty() {
            return Err(Mistake::MissingValue(word.to_owned()).at(line));
        }
        self.ranges += usize::from(word == "range");
        let (then, stop) = self.list()?;
        self.ranges -= usize::from(word == "range");
        let mut otherwise = Vec::new();
        match stop {
            Some((w, else_line)) if w == "else" => {
                let tokens = match &self.pieces[self.at] {
                    Piece::Action(tokens, _) => tokens.clone(),
                    Piece::Text(_) => Vec::new(),
                };
                self.at += 1;
                match tokens.get(1) {
                    Some(Token::Word(inner)) if inner == "if" || inner == "with" => {
                        otherwise.push(self.control(&inner.clone(), &tokens[2..], else_line)?);
                    }
                    _ => {
                        let (nodes, stop) = self.list()?;
                        self.expect_end(stop)?;
                        otherwise = nodes;
                    }
                }
            }
            other => self.expect_end(other)?,
        }
        self.variables.truncate(scope);
        Ok(match word {
            "if" => Node::If { condition: pipeline, then, otherwise },
            "with" => Node::With { value: pipeline, then, otherwise },
            _ => Node::Range { over: pipeline, body: then, otherwise },
        })
    }

    fn pipeline(&mut self, tokens: &[Token], line: usize) -> Result<Pipeline, ParseError> {
        let mut i = 0;
        let p = self.pipeline_from(tokens, &mut i, line, false)?;
        if p.commands.is_empty() {
            return Err(Mistake::MissingValue("command".to_owned()).at(line));
        }
        Ok(p)
    }

    fn pipeline_from(
        &mut self,
        tokens: &[Token],
        i: &mut usize,
        line: usize,
        nested: bool,
    ) -> Result<Pipeline, ParseError> {
        let mut p = Pipeline::default();
        let declares = match tokens {
            [Token::Variable(_, f), Token::Declare | Token::Assign, ..] if f.is_empty() => 1,
            [Token::Variable(_, f), Token::Comma, Token::Variable(..), Token::Declare | Token::Assign, ..]
                if f.is_empty() =>
            {
                3
            }
            _ => 0,
        };
        if declares > 0 && *i == 0 {
            for t in &tokens[..declares] {
                if let Token::Variable(name, _) = t {
                    p.variables.push(name.clone());
                }
            }
            p.assigns = tokens[declares] == Token::Assign;
            *i = declares + 1;
        }
        let mut command = Vec::new();
        while *i < tokens.len() {
            let token = &tokens[*i];
            *i += 1;
            match token {
                Token::Pipe => {
                    if command.is_empty() {
                        return Err(Mistake::MissingValue("command".to_owned()).at(line));
                    }
                    p.commands.push(std::mem::take(&mut command));
                }
                Token::Field(names) if names.is_empty() => command.push(Operand::Dot),
                Token::Field(names) => command.push(Operand::Field(names.clone())),
                Token::Variable(name, names) => {
                    if !self.variables.contains(name) {
                        return Err(Mistake::UndefinedVariable(name.clone()).at(line));
                    }
                    command.push(Operand::Variable(name.clone(), names.clone()));
                }
                Token::Constant(v) => command.push(Operand::Constant(v.clone())),
                Token::Word(w) if w == "nil" => command.push(Operand::Nil),
                Token::Word(w) => {
                    if !functions::is_defined(w) {
                        return Err(Mistake::UndefinedFunction(w.clone()).at(line));
                    }
                    command.push(Operand::Function(w.clone()));
                }
                Token::Open => {
                    let inner = self.pipeline_from_nested(tokens, i, line)?;
                    let names = match tokens.get(*i - 1) {
                        Some(Token::Close(names)) => names.clone(),
                        _ => return Err(Mistake::UnclosedParen.at(line)),
                    };
                    command.push(Operand::Paren(Box::new(inner), names));
                }
                Token::Close(_) if nested => {
                    if !command.is_empty() {
                        p.commands.push(command);
                    }
                    return Ok(p);
                }
                Token::Close(_) => return Err(Mistake::UnexpectedParen.at(line)),
                Token::Declare | Token::Assign | Token::Comma => {
                    return Err(Mistake::UnexpectedToken.at(line));
                }
            }
        }
        if nested {
            return Err(Mistake::UnclosedParen.at(line));
        }
        if !command.is_empty() {
            p.commands.push(command);
        }
        self.variables.extend(p.variables.iter().filter(|_| !p.assigns).cloned());
        Ok(p)
    }

    fn pipeline_from_nested(&mut self, tokens: &[Token], i: &mut usize, line: usize) -> Result<Pipeline, ParseError> {
        self.pipeline_from(tokens, i, line, true)
    }
}
