//! Tokens -> tree, by precedence. Nesting is bounded, so neither this nor anything that walks the tree runs deep.

use std::sync::Arc;

use crate::ast::{Expr, How, Kind, Select};
use crate::error::Issue;
use crate::lex::{self, Spot, Token};
use crate::macros;
use crate::value::Value;

/// Upstream's limit of nested expressions.
const DEEPEST: u32 = 250;
/// Upstream's limit of letters.
const LONGEST: usize = 100_000;

/// The tree, and how deep it is.
pub(crate) fn parse(source: &str) -> Result<(Expr, u32), Vec<Issue>> {
    let letters: Vec<char> = source.chars().collect();
    if letters.len() > LONGEST {
        let message = format!("expression code point size exceeds limit: size: {}, limit {LONGEST}", letters.len());
        return Err(vec![Issue::new(0, message)]);
    }
    let spots = lex::lex(&letters).map_err(|issue| vec![issue])?;
    let mut parser = Parser { spots, next: 0, depth: 0, deepest: 0 };
    let expression = parser.expression().and_then(|expression| match parser.peek() {
        Token::End => Ok(expression),
        _ => Err(parser.unexpected("<EOF>")),
    });
    let deepest = parser.deepest;
    expression.map(|expression| (expression, deepest)).map_err(|issue| vec![issue])
}

struct Parser {
    spots: Vec<Spot>,
    next: usize,
    depth: u32,
    deepest: u32,
}

/// Binary operators: how tightly they bind, and the function they mean.
const BINARY: [(&str, u8, &str); 12] = [
    ("<", 1, "_<_"),
    ("<=", 1, "_<=_"),
    (">=", 1, "_>=_"),
    (">", 1, "_>_"),
    ("==", 1, "_==_"),
    ("!=", 1, "_!=_"),
    ("in", 1, "@in"),
    ("+", 2, "_+_"),
    ("-", 2, "_-_"),
    ("*", 3, "_*_"),
    ("/", 3, "_/_"),
    ("%", 3, "_%_"),
];

type Parsed = Result<Expr, Issue>;

impl Parser {
    fn peek(&self) -> &Token {
        &self.spots[self.next].token
    }

    fn at(&self) -> u32 {
        self.spots[self.next].at
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(found) if *found == sign)
    }

    fn advance(&mut self) -> Token {
        let token = self.spots[self.next].token.clone();
        // The end stays where it is.
        self.next = (self.next + 1).min(self.spots.len() - 1);
        token
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = self.is(sign);
        if found {
            self.advance();
        }
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), Issue> {
        match self.take(sign) {
            true => Ok(()),
            false => Err(self.unexpected(&format!("'{sign}'"))),
        }
    }

    fn unexpected(&self, expected: &str) -> Issue {
        let found = match self.peek() {
            Token::End => "<EOF>".to_owned(),
            Token::Sign(sign) => (*sign).to_owned(),
            Token::Smallest => lex::SMALLEST.to_owned(),
            Token::Ident(name) | Token::Quoted(name) => name.to_string(),
            Token::Constant(value) => match value {
                Value::String(text) => format!("\"{text}\""),
                Value::Null => "null".to_owned(),
                other => other.text().map(|text| text.to_string()).unwrap_or_default(),
            },
        };
        Issue::new(self.at(), format!("Syntax error: mismatched input '{found}' expecting {expected}"))
    }

    /// Everything nested goes through here.
    fn deeper(&mut self, parse: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        self.depth += 1;
        self.reach(self.depth)?;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// The tree is so deep.
    fn reach(&mut self, depth: u32) -> Result<(), Issue> {
        self.deepest = self.deepest.max(depth);
        match depth > DEEPEST {
            true => Err(Issue::new(0, format!("expression recursion limit exceeded: {DEEPEST}"))),
            false => Ok(()),
        }
    }

    fn expression(&mut self) -> Parsed {
        self.deeper(Self::conditional)
    }

    fn conditional(&mut self) -> Parsed {
        let condition = self.either()?;
        let at = self.at();
        if !self.take("?") {
            return Ok(condition);
        }
        let yes = self.deeper(Self::either)?;
        self.expect(":")?;
        let no = self.expression()?;
        Ok(Expr::new(at, Kind::Conditional(Box::new([condition, yes, no]))))
    }

    fn either(&mut self) -> Parsed {
        self.chain("||", Self::both, Kind::Or)
    }

    fn both(&mut self) -> Parsed {
        self.chain("&&", |parser| parser.binary(1), Kind::And)
    }

    /// A chain of any length is one node.
    fn chain(&mut self, sign: &str, part: fn(&mut Self) -> Parsed, kind: fn(Vec<Expr>) -> Kind) -> Parsed {
        let first = part(self)?;
        let at = self.at();
        if !self.is(sign) {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.take(sign) {
            parts.push(part(self)?);
        }
        Ok(Expr::new(at, kind(parts)))
    }

    fn binary(&mut self, loosest: u8) -> Parsed {
        let mut left = self.unary()?;
        let mut links = 0;
        loop {
            let at = self.at();
            let Token::Sign(sign) = self.peek() else { return Ok(left) };
            let Some((_, strength, function)) = BINARY.iter().find(|(known, ..)| known == sign) else {
                return Ok(left);
            };
            if *strength < loosest {
                return Ok(left);
            }
            self.advance();
            let right = self.deeper(|parser| parser.binary(strength + 1))?;
            left = Expr::call(at, function, vec![left, right]);
            // The tree grows to the left with each link.
            links += 1;
            self.reach(links + self.depth)?;
        }
    }

    fn unary(&mut self) -> Parsed {
        let at = self.at();
        for (sign, function) in [("!", "!_"), ("-", "-_")] {
            if !self.is(sign) {
                continue;
            }
            let mut count = 0;
            while self.take(sign) {
                count += 1;
            }
            if sign == "-" && count == 1 && matches!(self.peek(), Token::Smallest) {
                self.advance();
                return self.members(Expr::new(at, Kind::Constant(Value::Int(i64::MIN))));
            }
            if sign == "-"
                && count == 1
                && let Token::Constant(value) = self.peek()
            {
                let negated = match value {
                    Value::Int(value) => Some(Value::Int(-value)),
                    Value::Double(value) => Some(Value::Double(-value)),
                    _ => None,
                };
                if let Some(negated) = negated {
                    self.advance();
                    return self.members(Expr::new(at, Kind::Constant(negated)));
                }
            }
            let operand = self.deeper(Self::unary)?;
            // Twice is not at all.
            return Ok(if count % 2 == 0 { operand } else { Expr::call(at, function, vec![operand]) });
        }
        let primary = self.primary()?;
        self.members(primary)
    }

    fn members(&mut self, mut operand: Expr) -> Parsed {
        let mut links = 0;
        loop {
            let at = self.at();
            if self.take(".") {
                let optional = self.take("?");
                let field = self.field()?;
                let selects = matches!(self.spots[self.next - 1].token, Token::Quoted(_)) || !self.is("(");
                operand = if optional || selects {
                    let how = if optional { How::Optional } else { How::Plain };
                    Expr::new(at, Kind::Select(Box::new(Select { operand, field, how })))
                } else {
                    let open = self.at();
                    self.advance();
                    let arguments = self.arguments(")")?;
                    macros::member(open, operand, &field, arguments)?
                };
            } else if self.take("[") {
                let function = if self.take("?") { "_[?_]" } else { "_[_]" };
                let index = self.expression()?;
                self.expect("]")?;
                operand = Expr::call(at, function, vec![operand, index]);
            } else {
                return Ok(operand);
            }
            links += 1;
            self.reach(links + self.depth)?;
        }
    }

    fn field(&mut self) -> Result<Arc<str>, Issue> {
        match self.peek().clone() {
            Token::Ident(name) | Token::Quoted(name) => {
                self.advance();
                Ok(name)
            }
            _ => Err(self.unexpected("IDENTIFIER")),
        }
    }

    /// Expressions up to a closing sign; a comma may stand before it in brackets.
    fn arguments(&mut self, close: &str) -> Result<Vec<Expr>, Issue> {
        let mut arguments = Vec::new();
        if self.take(close) {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.expression()?);
            if !self.take(",") {
                break;
            }
        }
        self.expect(close)?;
        Ok(arguments)
    }

    fn primary(&mut self) -> Parsed {
        let at = self.at();
        match self.peek().clone() {
            Token::Constant(value) => {
                self.advance();
                Ok(Expr::new(at, Kind::Constant(value)))
            }
            Token::Smallest => Err(Issue::new(at, "invalid int literal")),
            Token::Ident(name) => self.named(at, name.to_string()),
            Token::Sign(".") => {
                self.advance();
                let Token::Ident(name) = self.peek().clone() else { return Err(self.unexpected("IDENTIFIER")) };
                self.named(at, name.to_string())
            }
            Token::Sign("(") => {
                self.advance();
                let inner = self.expression()?;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Sign("[") => {
                self.advance();
                self.list(at)
            }
            Token::Sign("{") => {
                self.advance();
                self.map(at)
            }
            _ => Err(self.unexpected("{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}")),
        }
    }

    /// A variable, a call, or a structure: `a`, `a(b)`, `a.b{c: d}`.
    fn named(&mut self, at: u32, name: String) -> Parsed {
        if lex::is_reserved(&name) {
            return Err(Issue::new(at, format!("reserved identifier: {name}")));
        }
        self.advance();
        if self.is("(") {
            let open = self.at();
            self.advance();
            let arguments = self.arguments(")")?;
            return macros::global(open, &name, arguments);
        }
        if let Some(length) = self.struct_name_length() {
            let mut full = name;
            for _ in 0..length {
                self.advance();
                full.push('.');
                full.push_str(&self.field()?);
            }
            let open = self.at();
            self.expect("{")?;
            return self.structure(open, full.into());
        }
        Ok(Expr::new(at, Kind::Ident(name.into())))
    }

    /// How many `.name` stand before a `{`, if one comes.
    fn struct_name_length(&self) -> Option<usize> {
        let mut at = self.next;
        let mut length = 0;
        loop {
            match &self.spots.get(at)?.token {
                Token::Sign("{") => return Some(length),
                Token::Sign(".") => match &self.spots.get(at + 1)?.token {
                    Token::Ident(_) => {
                        at += 2;
                        length += 1;
                    }
                    _ => return None,
                },
                _ => return None,
            }
        }
    }

    fn list(&mut self, at: u32) -> Parsed {
        let mut items = Vec::new();
        while !self.take("]") {
            let optional = self.take("?");
            items.push((self.expression()?, optional));
            if !self.take(",") {
                self.expect("]")?;
                break;
            }
        }
        Ok(Expr::new(at, Kind::List(items)))
    }

    fn map(&mut self, at: u32) -> Parsed {
        let mut entries = Vec::new();
        while !self.take("}") {
            let optional = self.take("?");
            let key = self.expression()?;
            self.expect(":")?;
            entries.push((key, self.expression()?, optional));
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr::new(at, Kind::Map(entries)))
    }

    fn structure(&mut self, at: u32, name: Arc<str>) -> Parsed {
        let mut fields = Vec::new();
        while !self.take("}") {
            let optional = self.take("?");
            let field = self.field()?;
            self.expect(":")?;
            fields.push((field, self.expression()?, optional));
            if !self.take(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(Expr::new(at, Kind::Struct(name, fields)))
    }
}
