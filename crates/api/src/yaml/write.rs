//! YAML as upstream's client and server write it: sorted keys, sequences not indented under their key, and the quoting
//! and folding choices of go-yaml v2, byte for byte, because people diff this output.

use serde_json::Value;

/// Lines longer than this fold at the next space.
const BEST_WIDTH: usize = 80;

pub fn to_string(value: &Value) -> String {
    let mut e = Emitter { out: String::new(), column: 0 };
    match value {
        Value::Object(m) if !m.is_empty() => e.map(m, 0, false),
        Value::Array(a) if !a.is_empty() => e.seq(a, 0, false),
        other => {
            e.scalar(other, 0);
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
        let mut keys: Vec<&String> = map.keys().collect();
        keys.sort_by(|a, b| natural(a, b));
        for key in keys {
            if !inline {
                self.indent(indent);
            }
            inline = false;
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
            match item {
                Value::Object(m) if !m.is_empty() => self.map(m, indent + 2, true),
                Value::Array(a) if !a.is_empty() => self.seq(a, indent + 2, true),
                other => {
                    self.scalar(other, indent + 2);
                    self.newline();
                }
            }
        }
    }

    fn scalar(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Null => self.put("null"),
            Value::Bool(b) => self.put(if *b { "true" } else { "false" }),
            Value::Number(n) => {
                let n = n.to_string();
                self.put(&n);
            }
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
        let mut after_space = false;
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
            } else {
                if single && c == '\'' {
                    self.put("'");
                }
                self.out.push(c);
                self.column += 1;
                after_space = false;
            }
        }
    }

    fn double_quoted(&mut self, s: &str, indent: usize, key: bool) {
        self.put("\"");
        let chars: Vec<char> = s.chars().collect();
        let mut after_space = false;
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
                '\u{a0}' => "\\_".to_owned(),
                '\u{2028}' => "\\L".to_owned(),
                '\u{2029}' => "\\P".to_owned(),
                c if printable(c) => String::new(),
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
        if s.starts_with(' ') || s.starts_with('\n') {
            self.put("2");
        }
        if !s.ends_with('\n') {
            self.put("-");
        } else if s == "\n" || s.ends_with("\n\n") {
            self.put("+");
        }
        for line in s.strip_suffix('\n').unwrap_or(s).split('\n') {
            self.newline();
            if !line.is_empty() {
                self.indent(indent);
                self.put(line);
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
        let blank_at = |i: usize| chars.get(i).is_none_or(|c| matches!(c, ' ' | '\t' | '\n' | '\r'));
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
            let is_break = c == '\n';
            if !is_break && !printable(c) {
                special = true;
            }
            if is_break {
                breaks = true;
            }
            if c == ' ' {
                break_space |= previous_break;
                previous_space = true;
                previous_break = false;
            } else if is_break {
                space_break |= previous_space;
                previous_space = false;
                previous_break = true;
            } else {
                previous_space = false;
                previous_break = false;
            }
            preceded_by_blank = matches!(c, ' ' | '\t' | '\n' | '\r');
        }
        let leading = matches!(chars.first(), Some(' ' | '\n'));
        let trailing_space = chars.last() == Some(&' ');
        let trailing = trailing_space || chars.last() == Some(&'\n');
        Analysis {
            plain: !(indicators || special || breaks || leading || trailing || space_break || break_space),
            single: !(special || space_break || break_space),
            block: !(trailing_space || special || space_break),
        }
    }
}

fn printable(c: char) -> bool {
    matches!(c as u32,
        0x20..=0x7e | 0xa0..=0xd7ff | 0xe000..=0xfefe | 0xff00..=0xfffd | 0x10000..=0x10ffff)
        || c == '\n'
}

/// Whether a plain scalar with this text would be read back as something that is not a string.
fn resolves_to_other(s: &str) -> bool {
    if matches!(
        s,
        "" | "~"
            | "null"
            | "Null"
            | "NULL"
            | "y"
            | "Y"
            | "yes"
            | "Yes"
            | "YES"
            | "true"
            | "True"
            | "TRUE"
            | "on"
            | "On"
            | "ON"
            | "n"
            | "N"
            | "no"
            | "No"
            | "NO"
            | "false"
            | "False"
            | "FALSE"
            | "off"
            | "Off"
            | "OFF"
            | ".nan"
            | ".NaN"
            | ".NAN"
            | ".inf"
            | ".Inf"
            | ".INF"
            | "+.inf"
            | "+.Inf"
            | "+.INF"
            | "-.inf"
            | "-.Inf"
            | "-.INF"
            | "<<"
    ) {
        return true;
    }
    let first = s.as_bytes()[0];
    if !(first.is_ascii_digit() || matches!(first, b'+' | b'-' | b'.')) {
        return false;
    }
    is_timestamp(s) || is_int(&s.replace('_', "")) || is_float(&s.replace('_', "")) || is_base60(s)
}

fn is_int(s: &str) -> bool {
    let digits = s.strip_prefix(['+', '-']).unwrap_or(s);
    if digits.is_empty() {
        return false;
    }
    let radix = |prefixes: [&str; 2], radix: u32| {
        prefixes
            .iter()
            .find_map(|p| digits.strip_prefix(p))
            .is_some_and(|d| !d.is_empty() && d.chars().all(|c| c.is_digit(radix)))
    };
    if radix(["0x", "0X"], 16) || radix(["0b", "0B"], 2) || radix(["0o", "0O"], 8) {
        return true;
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return digits.bytes().all(|b| (b'0'..=b'7').contains(&b));
    }
    digits.bytes().all(|b| b.is_ascii_digit()) && digits.len() < 20
}

/// `^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`
fn is_float(s: &str) -> bool {
    let s = s.strip_prefix(['+', '-']).unwrap_or(s);
    let (mantissa, exponent) = match s.find(['e', 'E']) {
        Some(i) => (&s[..i], Some(&s[i + 1..])),
        None => (s, None),
    };
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    let mantissa_ok = match mantissa.split_once('.') {
        Some(("", fraction)) => !fraction.is_empty() && digits(fraction),
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => !mantissa.is_empty() && digits(mantissa),
    };
    mantissa_ok
        && exponent.is_none_or(|e| {
            let e = e.strip_prefix(['+', '-']).unwrap_or(e);
            !e.is_empty() && digits(e)
        })
}

/// `190:20:30`, a number to YAML 1.1.
fn is_base60(s: &str) -> bool {
    let s = s.strip_prefix(['+', '-']).unwrap_or(s);
    let mut parts = s.split(':');
    let first = parts.next().unwrap_or("");
    let rest: Vec<&str> = parts.collect();
    if rest.is_empty()
        || !first.as_bytes().first().is_some_and(u8::is_ascii_digit)
        || !first.bytes().all(|b| b.is_ascii_digit() || b == b'_')
    {
        return false;
    }
    rest.iter().enumerate().all(|(i, p)| {
        let p = if i + 1 == rest.len() { p.split('.').next().unwrap_or("") } else { p };
        matches!(p.len(), 1 | 2) && p.bytes().all(|b| b.is_ascii_digit()) && p.parse::<u32>().is_ok_and(|n| n < 60)
    })
}

fn is_timestamp(s: &str) -> bool {
    let bytes = s.as_bytes();
    if bytes.len() < 8 || !bytes[..4].iter().all(u8::is_ascii_digit) || bytes[4] != b'-' {
        return false;
    }
    let (date, time) = match s.find(['T', 't', ' ']) {
        Some(i) => (&s[..i], Some(s[i + 1..].trim())),
        None => (s, None),
    };
    let numbers: Vec<&str> = date.split('-').collect();
    if numbers.len() != 3 || !numbers[1..].iter().all(|n| matches!(n.len(), 1 | 2) && n.parse::<u8>().is_ok()) {
        return false;
    }
    if time.is_none() {
        return numbers[1..].iter().all(|n| n.len() == 2);
    }
    time.is_some_and(|t| t.matches(':').count() >= 2 && t.as_bytes().first().is_some_and(u8::is_ascii_digit))
}

/// go-yaml sorts keys so that runs of digits compare as numbers and letters come before other characters.
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
        let number = |s: &[char]| -> (usize, u128) {
            let mut n = 0u128;
            let mut k = i;
            // A leading zero run is compared digit by digit.
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
    fn long_lines_fold_after_eighty_columns() {
        let words = "word ".repeat(20);
        let out = to_string(&json!({"k": words.trim_end()}));
        assert_eq!(out, format!("k: {}\n  {}\n", "word ".repeat(16).trim_end(), "word ".repeat(4).trim_end()));
    }
}
