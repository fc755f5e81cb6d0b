//! Text -> tokens.

use std::sync::Arc;

use crate::error::Issue;
use crate::value::Value;

#[derive(Clone, Debug)]
pub(crate) enum Token {
    Constant(Value),
    Ident(Arc<str>),
    /// `` `a-b` ``: a field that is no identifier.
    Quoted(Arc<str>),
    /// The digits of the smallest int, which only a minus in front makes one.
    Smallest,
    /// Operators and brackets, and the word `in`.
    Sign(&'static str),
    End,
}

#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) at: u32,
    pub(crate) token: Token,
}

pub(crate) const SMALLEST: &str = "9223372036854775808";

const SIGNS: [&str; 28] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",", "(", ")", "[", "]",
    "{", "}", "=", "&", "|", "@",
];

/// Words that name nothing.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Whether this is kept from being a name, though it means nothing yet.
pub fn is_reserved(word: &str) -> bool {
    RESERVED.contains(&word)
}

/// Whether this may be the name of a variable.
pub fn is_identifier(name: &str) -> bool {
    let mut letters = name.bytes();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_')
        && !matches!(name, "true" | "false" | "null" | "in")
        && !is_reserved(name)
}

pub(crate) fn lex(source: &[char]) -> Result<Vec<Spot>, Issue> {
    let mut lexer = Lexer { source, at: 0 };
    let mut spots = Vec::new();
    loop {
        lexer.skip_blanks();
        let at = lexer.at as u32;
        let token = lexer.token()?;
        let is_end = matches!(token, Token::End);
        spots.push(Spot { at, token });
        if is_end {
            return Ok(spots);
        }
    }
}

struct Lexer<'a> {
    source: &'a [char],
    at: usize,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> char {
        self.source.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn is_over(&self) -> bool {
        self.at >= self.source.len()
    }

    fn skip_blanks(&mut self) {
        while !self.is_over() {
            match self.peek(0) {
                ' ' | '\t' | '\n' | '\r' | '\x0c' => self.at += 1,
                '/' if self.peek(1) == '/' => {
                    while !self.is_over() && self.peek(0) != '\n' {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn issue(&self, message: impl Into<String>) -> Issue {
        Issue::new(self.at as u32, format!("Syntax error: {}", message.into()))
    }

    fn token(&mut self) -> Result<Token, Issue> {
        if self.is_over() {
            return Ok(Token::End);
        }
        let first = self.peek(0);
        if first.is_ascii_digit() || first == '.' && self.peek(1).is_ascii_digit() {
            return self.number();
        }
        if matches!(first, '"' | '\'') {
            return self.text(false, false);
        }
        if first.is_ascii_alphabetic() || first == '_' {
            return self.word();
        }
        if first == '`' {
            let rest = &self.source[self.at + 1..];
            let Some(end) = rest.iter().position(|letter| *letter == '`').filter(|end| *end > 0) else {
                return Err(self.issue("token recognition error at: '`'"));
            };
            let name: String = rest[..end].iter().collect();
            if !name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.-/ ".contains(letter)) {
                return Err(self.issue("token recognition error at: '`'"));
            }
            self.at += end + 2;
            return Ok(Token::Quoted(name.into()));
        }
        for sign in SIGNS {
            if sign.chars().enumerate().all(|(i, letter)| self.peek(i) == letter) {
                if matches!(sign, "=" | "&" | "|" | "@") {
                    break;
                }
                self.at += sign.len();
                return Ok(Token::Sign(sign));
            }
        }
        let mut shown: String = first.escape_debug().collect();
        if first != '\0' && matches!(first, '=' | '&' | '|') && self.peek(1) != '\0' {
            shown.push(self.peek(1));
        }
        Err(self.issue(format!("token recognition error at: '{shown}'")))
    }

    fn word(&mut self) -> Result<Token, Issue> {
        let start = self.at;
        while self.peek(0).is_ascii_alphanumeric() || self.peek(0) == '_' {
            self.at += 1;
        }
        let word: String = self.source[start..self.at].iter().collect();
        if matches!(self.peek(0), '"' | '\'') {
            let (raw, bytes) = match word.to_ascii_lowercase().as_str() {
                "r" => (true, false),
                "b" => (false, true),
                "rb" | "br" => (true, true),
                _ => return Ok(Token::Ident(word.into())),
            };
            return self.text(raw, bytes);
        }
        Ok(match word.as_str() {
            "true" => Token::Constant(Value::Bool(true)),
            "false" => Token::Constant(Value::Bool(false)),
            "null" => Token::Constant(Value::Null),
            "in" => Token::Sign("in"),
            _ => Token::Ident(word.into()),
        })
    }

    fn digits(&mut self) -> String {
        let start = self.at;
        while self.peek(0).is_ascii_digit() {
            self.at += 1;
        }
        self.source[start..self.at].iter().collect()
    }

    fn number(&mut self) -> Result<Token, Issue> {
        let start = self.at;
        let refused = |what: &str| Issue::new(start as u32, format!("invalid {what} literal"));
        if self.peek(0) == '0' && self.peek(1) == 'x' && self.peek(2).is_ascii_hexdigit() {
            self.at += 2;
            let digits = self.at;
            while self.peek(0).is_ascii_hexdigit() {
                self.at += 1;
            }
            let digits: String = self.source[digits..self.at].iter().collect();
            if matches!(self.peek(0), 'u' | 'U') {
                self.at += 1;
                let value = u64::from_str_radix(&digits, 16).map_err(|_| refused("uint"))?;
                return Ok(Token::Constant(Value::Uint(value)));
            }
            let value = i64::from_str_radix(&digits, 16).map_err(|_| refused("int"))?;
            return Ok(Token::Constant(Value::Int(value)));
        }
        let mut is_double = false;
        self.digits();
        if self.peek(0) == '.' && self.peek(1).is_ascii_digit() {
            is_double = true;
            self.at += 1;
            self.digits();
        }
        if matches!(self.peek(0), 'e' | 'E') {
            let sign = usize::from(matches!(self.peek(1), '+' | '-'));
            if self.peek(1 + sign).is_ascii_digit() {
                is_double = true;
                self.at += 1 + sign;
                self.digits();
            }
        }
        let text: String = self.source[start..self.at].iter().collect();
        if is_double {
            let value = text.parse().map_err(|_| refused("double"))?;
            return Ok(Token::Constant(Value::Double(value)));
        }
        if matches!(self.peek(0), 'u' | 'U') {
            self.at += 1;
            return Ok(Token::Constant(Value::Uint(text.parse().map_err(|_| refused("uint"))?)));
        }
        match text.parse() {
            Ok(value) => Ok(Token::Constant(Value::Int(value))),
            Err(_) if text == SMALLEST => Ok(Token::Smallest),
            Err(_) => Err(refused("int")),
        }
    }

    fn text(&mut self, raw: bool, is_bytes: bool) -> Result<Token, Issue> {
        let start = self.at;
        let quote = self.peek(0);
        let triple = self.peek(1) == quote && self.peek(2) == quote;
        self.at += if triple { 3 } else { 1 };
        let unfinished = || {
            let shown: String = self.source[start..].iter().take(40).collect();
            Issue::new(start as u32, format!("Syntax error: token recognition error at: '{shown}'"))
        };
        let (mut text, mut bytes) = (String::new(), Vec::new());
        loop {
            if self.at >= self.source.len() {
                return Err(unfinished());
            }
            let letter = self.peek(0);
            if letter == quote && (!triple || self.peek(1) == quote && self.peek(2) == quote) {
                self.at += if triple { 3 } else { 1 };
                break;
            }
            if !triple && matches!(letter, '\n' | '\r') {
                return Err(unfinished());
            }
            self.at += 1;
            if letter != '\\' || raw {
                text.push(letter);
                bytes.extend(letter.encode_utf8(&mut [0; 4]).bytes());
                continue;
            }
            let (code, is_byte) = self.escape()?;
            match char::from_u32(code) {
                Some(letter) => {
                    text.push(letter);
                    if is_byte && is_bytes {
                        bytes.push(code as u8);
                    } else {
                        bytes.extend(letter.encode_utf8(&mut [0; 4]).bytes());
                    }
                }
                None => return Err(self.issue("invalid unicode code point")),
            }
        }
        Ok(Token::Constant(match is_bytes {
            true => Value::Bytes(bytes.into()),
            false => Value::String(text.into()),
        }))
    }

    /// What stands after a backslash, and whether it is a byte by its number.
    fn escape(&mut self) -> Result<(u32, bool), Issue> {
        let letter = self.peek(0);
        self.at += 1;
        let mut number = |length: usize, radix: u32| {
            let digits: String = self.source.iter().skip(self.at).take(length).collect();
            self.at += length;
            match digits.len() == length {
                true => u32::from_str_radix(&digits, radix).ok(),
                false => None,
            }
        };
        let code = match letter {
            'a' => Some((7, false)),
            'b' => Some((8, false)),
            'f' => Some((12, false)),
            'n' => Some((10, false)),
            'r' => Some((13, false)),
            't' => Some((9, false)),
            'v' => Some((11, false)),
            '\\' | '\'' | '"' | '`' | '?' => Some((u32::from(letter), false)),
            'x' | 'X' => number(2, 16).map(|code| (code, true)),
            'u' => number(4, 16).map(|code| (code, false)),
            'U' => number(8, 16).map(|code| (code, false)),
            '0'..='3' => {
                let first = u32::from(letter) - u32::from('0');
                number(2, 8).map(|rest| (first * 64 + rest, true))
            }
            _ => None,
        };
        code.ok_or_else(|| self.issue("token recognition error: unknown escape sequence"))
    }
}
