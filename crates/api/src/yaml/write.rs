//! YAML as upstream's client and server write it: sorted keys, sequences not indented under their key, and the quoting
//! and folding choices of go-yaml v2, byte for byte, because people diff this output.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::words::{Rules, resolve};
use crate::sort::merge_sorted;

/// Lines longer than this fold at the next space.
const BEST_WIDTH: usize = 80;

/// Longer keys stand after a `?`.
const LONGEST_SIMPLE_KEY: usize = 128;

pub fn to_string(value: &Value) -> String {
    let mut e = Emitter { out: String::new(), column: 0 };
    match value {
        Value::Object(m) if !m.is_empty() => e.map(m, 0, false),
        Value::Array(a) if !a.is_empty() => e.seq(a, 0, false),
        other => {
            e.scalar(other, 2);
            e.newline();
        }
    }
    e.out
}

struct Emitter {
    out: String,
    column: usize,
}

impl Emitter {
    fn put(&mut self, s: &str) {
        self.out.push_str(s);
        self.column += s.chars().count();
    }

    fn newline(&mut self) {
        self.out.push('\n');
        self.column = 0;
    }

    fn indent(&mut self, n: usize) {
        self.out.extend(std::iter::repeat_n(' ', n));
        self.column += n;
    }

    /// `inline`: the first key stands on the line of its `- `.
    fn map(&mut self, map: &serde_json::Map<String, Value>, indent: usize, mut inline: bool) {
        let keys: Vec<&str> = map.keys().map(String::as_str).collect();
        for key in merge_sorted(&keys, &natural) {
            if !inline {
                self.indent(indent);
            }
            inline = false;
            if key.len() > LONGEST_SIMPLE_KEY || key.contains(is_break) {
                self.put("? ");
                self.string(key, indent + 2, false);
                self.newline();
                self.indent(indent);
                self.put(": ");
                self.item(&map[key], indent + 2);
                continue;
            }
            self.string(key, indent, true);
            self.put(":");
            match &map[key] {
                Value::Object(m) if !m.is_empty() => {
                    self.newline();
                    self.map(m, indent + 2, false);
                }
                Value::Array(a) if !a.is_empty() => {
                    self.newline();
                    self.seq(a, indent, false);
                }
                other => {
                    self.put(" ");
                    self.scalar(other, indent + 2);
                    self.newline();
                }
            }
        }
    }

    fn seq(&mut self, items: &[Value], indent: usize, mut inline: bool) {
        for item in items {
            if !inline {
                self.indent(indent);
            }
            inline = false;
            self.put("- ");
            self.item(item, indent + 2);
        }
    }

    /// What begins on the line of its `- `, or of the `: ` of a long key.
    fn item(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Object(m) if !m.is_empty() => self.map(m, indent, true),
            Value::Array(a) if !a.is_empty() => self.seq(a, indent, true),
            other => {
                self.scalar(other, indent);
                self.newline();
            }
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Null => self.put("null"),
            Value::Bool(b) => self.put(if *b { "true" } else { "false" }),
            Value::Number(n) => match n.as_f64() {
                Some(float) if n.is_f64() => self.put(&short_float(float)),
                _ => self.put(&n.to_string()),
            },
            Value::String(s) => self.string(s, indent, false),
            Value::Array(_) => self.put("[]"),
            Value::Object(_) => self.put("{}"),
        }
    }

    fn string(&mut self, s: &str, indent: usize, key: bool) {
        let a = Analysis::of(s);
        if s.contains('\n') {
            if a.block && !key {
                return self.literal(s, indent);
            }
            return self.double_quoted(s, indent, key);
        }
        if resolves_to_other(s) {
            return self.double_quoted(s, indent, key);
        }
        if a.plain {
            self.folded(s, indent, key, false);
        } else if a.single {
            self.put("'");
            self.folded(s, indent, key, true);
            self.put("'");
        } else {
            self.double_quoted(s, indent, key);
        }
    }

    fn folded(&mut self, s: &str, indent: usize, key: bool, single: bool) {
        let chars: Vec<char> = s.chars().collect();
        let (mut after_space, mut after_break) = (false, false);
        for (i, &c) in chars.iter().enumerate() {
            if c == ' ' {
                let inner = !single || (i > 0 && i + 1 < chars.len());
                if !key && !after_space && self.column > BEST_WIDTH && inner && chars.get(i + 1) != Some(&' ') {
                    self.newline();
                    self.indent(indent);
                } else {
                    self.put(" ");
                }
                after_space = true;
            } else if is_break(c) {
                self.line_break(c);
                after_break = true;
            } else {
                if std::mem::take(&mut after_break) {
                    self.indent(indent);
                }
                if single && c == '\'' {
                    self.put("'");
                }
                self.out.push(c);
                self.column += 1;
                after_space = false;
            }
        }
    }

    fn line_break(&mut self, c: char) {
        self.out.push(c);
        self.column = 0;
    }

    fn double_quoted(&mut self, s: &str, indent: usize, key: bool) {
        self.put("\"");
        let chars: Vec<char> = s.chars().collect();
        let mut after_space = false;
        // A byte order mark in front has the library escape all that follows.
        let marked = chars.first() == Some(&'\u{feff}');
        for (i, &c) in chars.iter().enumerate() {
            let escape = match c {
                '"' => "\\\"".to_owned(),
                '\\' => "\\\\".to_owned(),
                '\n' => "\\n".to_owned(),
                '\t' => "\\t".to_owned(),
                '\r' => "\\r".to_owned(),
                '\0' => "\\0".to_owned(),
                '\x07' => "\\a".to_owned(),
                '\x08' => "\\b".to_owned(),
                '\x0b' => "\\v".to_owned(),
                '\x0c' => "\\f".to_owned(),
                '\x1b' => "\\e".to_owned(),
                '\u{85}' => "\\N".to_owned(),
                '\u{2028}' => "\\L".to_owned(),
                '\u{2029}' => "\\P".to_owned(),
                c if printable(c) && !marked => String::new(),
                '\u{a0}' => "\\_".to_owned(),
                c if (c as u32) < 0x100 => format!("\\x{:02X}", c as u32),
                c if (c as u32) < 0x10000 => format!("\\u{:04X}", c as u32),
                c => format!("\\U{:08X}", c as u32),
            };
            if !escape.is_empty() {
                self.put(&escape);
                after_space = false;
            } else if c == ' ' {
                if !key && !after_space && self.column > BEST_WIDTH && i > 0 && i + 1 < chars.len() {
                    self.newline();
                    self.indent(indent);
                    if chars.get(i + 1) == Some(&' ') {
                        self.put("\\");
                    }
                } else {
                    self.put(" ");
                }
                after_space = true;
            } else {
                self.out.push(c);
                self.column += 1;
                after_space = false;
            }
        }
        self.put("\"");
    }

    /// Leaves the last line open: the caller ends it.
    fn literal(&mut self, s: &str, indent: usize) {
        self.put("|");
        if s.starts_with(|c| c == ' ' || is_break(c)) {
            self.put("2");
        }
        let mut from_end = s.chars().rev();
        match (from_end.next().is_some_and(is_break), from_end.next().is_none_or(is_break)) {
            (false, _) => self.put("-"),
            (true, true) => self.put("+"),
            (true, false) => {}
        }
        self.newline();
        let mut after_break = true;
        for c in s.strip_suffix('\n').unwrap_or(s).chars() {
            if is_break(c) {
                self.line_break(c);
                after_break = true;
            } else {
                if std::mem::take(&mut after_break) {
                    self.indent(indent);
                }
                self.out.push(c);
            }
        }
    }
}

/// Which styles a string may take (go-yaml's `yaml_emitter_analyze_scalar`).
struct Analysis {
    plain: bool,
    single: bool,
    block: bool,
}

impl Analysis {
    fn of(s: &str) -> Analysis {
        let chars: Vec<char> = s.chars().collect();
        let (mut indicators, mut special, mut breaks, mut space_break, mut break_space) =
            (false, false, false, false, false);
        if s.starts_with("---") || s.starts_with("...") {
            indicators = true;
        }
        let blank_at = |i: usize| chars.get(i).is_none_or(|c| matches!(c, ' ' | '\t'));
        let (mut previous_space, mut previous_break) = (false, false);
        let mut preceded_by_blank = true;
        for (i, &c) in chars.iter().enumerate() {
            let followed = blank_at(i + 1);
            if i == 0 {
                match c {
                    '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' => {
                        indicators = true;
                    }
                    '?' | ':' | '-' if followed => indicators = true,
                    _ => {}
                }
            } else {
                match c {
                    ':' if followed => indicators = true,
                    '#' if preceded_by_blank => indicators = true,
                    _ => {}
                }
            }
            if !printable(c) {
                special = true;
            }
            if is_break(c) {
                breaks = true;
                space_break |= previous_space;
            }
            if c == ' ' {
                break_space |= previous_break;
            }
            previous_space = c == ' ';
            previous_break = is_break(c);
            preceded_by_blank = matches!(c, ' ' | '\t' | '\0') || is_break(c);
        }
        let edge = |c: Option<&char>| c.is_some_and(|&c| c == ' ' || is_break(c));
        let trailing_space = chars.last() == Some(&' ');
        let edges = edge(chars.first()) || edge(chars.last());
        Analysis {
            plain: !(indicators || special || breaks || edges || space_break || break_space),
            single: !(special || space_break || break_space),
            block: !(trailing_space || special || space_break),
        }
    }
}

/// Whether YAML 1.1 ends a line here.
fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Whether the library writes a character as it is: none beyond the basic plane.
fn printable(c: char) -> bool {
    matches!(c as u32, 0x20..=0x7e | 0xa0..=0xd7ff | 0xe000..=0xfefe | 0xff00..=0xfffd) || c == '\n'
}

/// A float with the fewest digits that give it back, as Go's `%g` has it.
fn short_float(float: f64) -> String {
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..=5 => {
            let plain = float.to_string();
            plain.strip_suffix(".0").unwrap_or(&plain).to_owned()
        }
        n => format!("{digits}e{}{:02}", if n < 0 { '-' } else { '+' }, n.abs()),
    }
}

/// Whether a plain scalar with this text would be read back as something that is not a string.
fn resolves_to_other(s: &str) -> bool {
    let infinite = |s: &str| matches!(s, ".inf" | ".Inf" | ".INF");
    matches!(s, "" | "~" | "null" | "Null" | "NULL" | "true" | "True" | "TRUE" | "false" | "False" | "FALSE" | "<<")
        || matches!(s, ".nan" | ".NaN" | ".NAN")
        || infinite(s.strip_prefix(['+', '-']).unwrap_or(s))
        || resolve(s, Rules::Full).is_some()
        || is_base60(s)
        || is_timestamp(s)
}

/// `190:20:30`, a number to YAML 1.1.
fn is_base60(s: &str) -> bool {
    let s = s.strip_prefix(['+', '-']).unwrap_or(s);
    let mut parts = s.split(':');
    let first = parts.next().unwrap_or("");
    let rest: Vec<&str> = parts.collect();
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    if rest.is_empty() || !first.starts_with(|c: char| c.is_ascii_digit()) || !digits(first) {
        return false;
    }
    rest.iter().enumerate().all(|(i, part)| {
        let whole = match part.split_once('.') {
            Some((whole, fraction)) if i + 1 == rest.len() && digits(fraction) => whole,
            _ => part,
        };
        matches!(whole.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9'])
    })
}

/// `2006-1-2`, alone or with a time: `T15:4:5Z`, `t15:4:5+07:00`, ` 15:4:5`, each with or without a fraction.
fn is_timestamp(s: &str) -> bool {
    fn number(s: &str, range: RangeInclusive<u32>) -> Option<&str> {
        let digits = s.bytes().take(2).take_while(u8::is_ascii_digit).count();
        let value = s[..digits].parse().ok()?;
        range.contains(&value).then(|| &s[digits..])
    }
    fn clock(s: &str) -> Option<&str> {
        let s = number(number(number(s, 0..=23)?.strip_prefix(':')?, 0..=59)?.strip_prefix(':')?, 0..=59)?;
        let fraction = s.strip_prefix(['.', ',']).unwrap_or(s);
        let rest = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
        Some(if rest.len() < fraction.len() { rest } else { s })
    }
    fn zone(s: &str) -> bool {
        let bytes = s.strip_prefix(['+', '-']).unwrap_or("").as_bytes();
        s == "Z"
            || matches!(bytes, [a, b, b':', c, d] if [a, b, c, d].iter().all(|d| d.is_ascii_digit())
                && (*a, *b) <= (b'2', b'4') && (*c, *d) <= (b'6', b'0'))
    }
    let Some((year, rest)) = s.split_once('-') else { return false };
    let Some((year, month_and_day)) = (year.len() == 4).then(|| year.parse().ok()).flatten().zip(Some(rest)) else {
        return false;
    };
    let date = || -> Option<&str> {
        let after_month = number(month_and_day, 1..=12)?;
        let month = month_and_day[..month_and_day.len() - after_month.len()].parse().ok()?;
        number(after_month.strip_prefix('-')?, 1..=days_of(year, month))
    };
    match date() {
        None => false,
        Some("") => true,
        Some(time) if time.starts_with(['T', 't']) => clock(&time[1..]).is_some_and(zone),
        Some(time) => time.strip_prefix(' ').and_then(clock) == Some(""),
    }
}

fn days_of(year: u32, month: u32) -> u32 {
    match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// go-yaml sorts keys, with circles (`007`, `0a`, `1a`), so that runs of digits compare as numbers and letters come before other characters.
fn natural(a: &str, b: &str) -> std::cmp::Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut i = 0;
    while i < a.len() && i < b.len() {
        if a[i] == b[i] {
            i += 1;
            continue;
        }
        let (al, bl) = (a[i].is_alphabetic(), b[i].is_alphabetic());
        if al && bl {
            return a[i].cmp(&b[i]);
        }
        if al || bl {
            return if al { std::cmp::Ordering::Greater } else { std::cmp::Ordering::Less };
        }
        // A zero inside a number does not begin one.
        let inside =
            (a[i] == '0' || b[i] == '0') && a[..i].iter().rev().take_while(|c| c.is_ascii_digit()).any(|&c| c != '0');
        let number = |s: &[char]| -> (usize, u128) {
            let mut n = u128::from(inside);
            let mut k = i;
            while k < s.len() && s[k].is_ascii_digit() {
                n = n.saturating_mul(10).saturating_add(u128::from(s[k] as u32 - '0' as u32));
                k += 1;
            }
            (k, n)
        };
        let ((ak, an), (bk, bn)) = (number(&a), number(&b));
        if an != bn {
            return an.cmp(&bn);
        }
        if ak != bk {
            return ak.cmp(&bk);
        }
        return a[i].cmp(&b[i]);
    }
    a.len().cmp(&b.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn scalars_quote_as_go_yaml() {
        for (value, expected) in [
            ("plain", "plain"),
            ("", "\"\""),
            ("true", "\"true\""),
            ("yes", "\"yes\""),
            ("1", "\"1\""),
            ("1.5", "\"1.5\""),
            ("1e3", "\"1e3\""),
            ("0x1f", "\"0x1f\""),
            ("1.2.3", "1.2.3"),
            ("10.0.0.1", "10.0.0.1"),
            ("100m", "100m"),
            ("2024-01-02T03:04:05Z", "\"2024-01-02T03:04:05Z\""),
            ("12:30", "\"12:30\""),
            ("12:30:99", "12:30:99"),
            ("a: b", "'a: b'"),
            ("it's", "it's"),
            ("'q'", "'''q'''"),
            ("*", "'*'"),
            ("- x", "'- x'"),
            ("-x", "-x"),
            ("a #b", "'a #b'"),
            ("{a}", "'{a}'"),
            ("a\tb", "\"a\\tb\""),
            ("trailing ", "'trailing '"),
            ("null", "\"null\""),
            ("http://x:80/", "http://x:80/"),
            ("%d", "'%d'"),
        ] {
            assert_eq!(to_string(&json!({"k": value})), format!("k: {expected}\n"), "{value:?}");
        }
    }

    #[test]
    fn structure_and_block_scalars() {
        let value = json!({"spec": {"containers": [{"name": "a", "args": ["x", "y"], "env": []}], "empty": {}},
            "list": [["a"], []], "text": "one\ntwo\n", "open": "one\ntwo", "null": null, "n": 3});
        assert_eq!(
            to_string(&value),
            "list:\n- - a\n- []\n\"n\": 3\n\"null\": null\nopen: |-\n  one\n  two\nspec:\n  containers:\n  - args:\n    - x\n    - \"y\"\n    env: []\n    name: a\n  empty: {}\ntext: |\n  one\n  two\n"
        );
    }

    #[test]
    fn long_keys_stand_after_a_question_mark() {
        let key = "k".repeat(LONGEST_SIMPLE_KEY + 1);
        assert_eq!(
            to_string(&json!({&key: {"a": 1, "b": [2]}, "z": {"two\nlines": ["x", "y"]}})),
            format!("? {key}\n: a: 1\n  b:\n  - 2\nz:\n  ? |-\n    two\n    lines\n  : - x\n    - \"y\"\n")
        );
    }

    #[test]
    fn numbers_and_text_look_as_in_go() {
        for (value, expected) in [
            (json!(0.5), "0.5"),
            (json!(100_000.0), "100000"),
            (json!(1_234_567.5), "1.2345675e+06"),
            (json!(0.000_012), "1.2e-05"),
            (json!(1_234_567), "1234567"),
            (json!("one\ntwo"), "|-\n  one\n  two"),
            (json!("\u{1f600}"), "\"\\U0001F600\""),
            (json!("a\u{a0}b"), "a\u{a0}b"),
            (json!("2024-1-2"), "\"2024-1-2\""),
            (json!("2024-2-30"), "2024-2-30"),
            (json!("2024-01-02 3:4:5"), "\"2024-01-02 3:4:5\""),
            (json!("2024-01-02 3:4:5Z"), "2024-01-02 3:4:5Z"),
        ] {
            assert_eq!(to_string(&value), format!("{expected}\n"));
        }
    }

    #[test]
    fn keys_in_a_circle_can_be_sorted() {
        let map: serde_json::Map<String, Value> =
            (0..300).map(|i| (format!("{}{i}", ["007", "0a", "1a"][i % 3]), json!(i))).collect();
        assert_eq!(to_string(&Value::Object(map)).lines().count(), 300);
        assert_eq!(to_string(&json!({"a100": 1, "a15": 2, "a9": 3})), "a9: 3\na15: 2\na100: 1\n");
    }

    /// Neither a text that fills the whole document nor a key of several lines may end it early.
    #[test]
    fn what_is_written_is_read_back() {
        for value in [
            json!(format!("/\"a\"{}:[{{\"b\"{}:[{{\"n", "\n".repeat(35), "\n".repeat(18))),
            json!("--- a\n--- b\n...\n"),
            json!({"<<": {"a\n\n": "\n"}, "x": "- a\n- b"}),
        ] {
            let text = to_string(&value);
            assert_eq!(crate::codec::from_yaml(text.as_bytes()).unwrap().value, value, "{text}");
        }
    }

    /// Values of all kinds with the characters that mean something in YAML. Line breaks other than `\n` are left out: at
    /// the end of a text go-yaml loses them too.
    fn any_value() -> impl Strategy<Value = Value> {
        let text = "([a-c01._~-]|[ \n\t:#?|>'\"\\\\{}\\[\\],&*!%@`=<]|true|null|0x1f|1e3|12:30|---|\u{1f600}|\u{e9}|some words ){0,12}";
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (any::<i32>(), 1..7u32).prop_map(|(n, shift)| json!(f64::from(n) / 10f64.powi(shift as i32) + 0.03125)),
            text.prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(text, inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_value_is_read_back(value in any_value()) {
            let text = to_string(&value);
            let read = crate::codec::from_yaml(text.as_bytes()).map(|decoded| decoded.value);
            prop_assert_eq!(read.unwrap(), value, "{}", text);
        }
    }

    #[test]
    fn long_lines_fold_after_eighty_columns() {
        let words = "word ".repeat(20);
        let out = to_string(&json!({"k": words.trim_end()}));
        assert_eq!(out, format!("k: {}\n  {}\n", "word ".repeat(16).trim_end(), "word ".repeat(4).trim_end()));
    }
}
