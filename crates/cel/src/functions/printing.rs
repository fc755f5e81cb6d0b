//! `'...'.format([...])` and quoting.

use std::fmt::Write as _;

use crate::budget::Budget;
use crate::error::Error;
use crate::time;
use crate::value::{Value, double_text};

/// Digits of exponents, as upstream writes them.
const RAISED: &str = "\u{2070}\u{b9}\u{b2}\u{b3}\u{2074}\u{2075}\u{2076}\u{2077}\u{2078}\u{2079}";
/// No number needs more digits.
const MOST_DIGITS: usize = 1000;

pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for letter in text.chars() {
        match letter {
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

pub(super) fn format(budget: &mut Budget, format: &str, arguments: &[Value]) -> Result<String, Error> {
    budget.walk(format.len())?;
    let mut out = String::new();
    let mut arguments = arguments.iter().enumerate();
    let mut letters = format.chars().peekable();
    let mut count = 0;
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        if letters.next_if_eq(&'%').is_some() {
            out.push('%');
            continue;
        }
        let mut precision = None;
        if letters.next_if_eq(&'.').is_some() {
            let mut digits = String::new();
            while let Some(digit) = letters.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            let parsed = digits.parse().ok().filter(|digits| *digits <= MOST_DIGITS);
            precision = Some(parsed.ok_or_else(|| Error::new("error while parsing precision"))?);
        }
        let clause = letters.next().ok_or_else(|| Error::new("unexpected end of format string"))?;
        let Some((_, argument)) = arguments.next() else {
            return Err(Error::new(format!("index {count} out of range")));
        };
        count += 1;
        budget.walk(argument.size(budget.most()))?;
        let before = out.len();
        write_clause(&mut out, clause, precision, argument)?;
        budget.walk(out.len() - before)?;
    }
    Ok(out)
}

fn write_clause(out: &mut String, clause: char, precision: Option<usize>, value: &Value) -> Result<(), Error> {
    let wrong = |what: &str| {
        Error::new(format!(
            "error during formatting: {what} clause can only be used on {}, was given {}",
            if what == "string" {
                "strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps"
            } else {
                "numbers"
            },
            value.type_name()
        ))
    };
    match (clause, value) {
        ('s', value) => out.push_str(&shown(value).ok_or_else(|| wrong("string"))?),
        ('d', Value::Int(value)) => _ = write!(out, "{value}"),
        ('d', Value::Uint(value)) => _ = write!(out, "{value}"),
        ('d', Value::Double(value)) if !value.is_finite() => out.push_str(special(*value)),
        ('d', _) => return Err(wrong("decimal")),
        ('f', value) => match number(value) {
            Some(value) if !value.is_finite() => out.push_str(special(value)),
            Some(value) => _ = write!(out, "{value:.*}", precision.unwrap_or(6)),
            None => return Err(wrong("fixed-point")),
        },
        ('e', value) => match number(value) {
            Some(value) if !value.is_finite() => out.push_str(special(value)),
            Some(value) => {
                let text = format!("{value:.*e}", precision.unwrap_or(6));
                let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let exponent: i32 = exponent.parse().unwrap_or_default();
                let raised = |digit: char| digit.to_digit(10).and_then(|digit| RAISED.chars().nth(digit as usize));
                let sign = if exponent < 0 { "\u{207b}" } else { "" };
                let exponent: String = format!("{:02}", exponent.abs()).chars().filter_map(raised).collect();
                _ = write!(out, "{digits}\u{d7}10{sign}{exponent}");
            }
            None => return Err(wrong("scientific")),
        },
        ('b', Value::Int(value)) => out.push_str(&signed(*value, |size| format!("{size:b}"))),
        ('b', Value::Uint(value)) => _ = write!(out, "{value:b}"),
        ('b', Value::Bool(value)) => out.push(if *value { '1' } else { '0' }),
        ('b', _) => return Err(wrong("binary")),
        ('o', Value::Int(value)) => out.push_str(&signed(*value, |size| format!("{size:o}"))),
        ('o', Value::Uint(value)) => _ = write!(out, "{value:o}"),
        ('o', _) => return Err(wrong("octal")),
        ('x', Value::Int(value)) => out.push_str(&signed(*value, |size| format!("{size:x}"))),
        ('X', Value::Int(value)) => out.push_str(&signed(*value, |size| format!("{size:X}"))),
        ('x', Value::Uint(value)) => _ = write!(out, "{value:x}"),
        ('X', Value::Uint(value)) => _ = write!(out, "{value:X}"),
        ('x', Value::String(text)) => text.bytes().for_each(|byte| _ = write!(out, "{byte:02x}")),
        ('X', Value::String(text)) => text.bytes().for_each(|byte| _ = write!(out, "{byte:02X}")),
        ('x', Value::Bytes(bytes)) => bytes.iter().for_each(|byte| _ = write!(out, "{byte:02x}")),
        ('X', Value::Bytes(bytes)) => bytes.iter().for_each(|byte| _ = write!(out, "{byte:02X}")),
        ('x' | 'X', _) => return Err(wrong("hex")),
        (other, _) => {
            let message = format!("could not parse formatting clause: unrecognized formatting clause \"{other}\"");
            return Err(Error::new(message));
        }
    }
    Ok(())
}

fn signed(value: i64, of: fn(u64) -> String) -> String {
    format!("{}{}", if value < 0 { "-" } else { "" }, of(value.unsigned_abs()))
}

fn special(value: f64) -> &'static str {
    match value {
        value if value.is_nan() => "NaN",
        value if value > 0.0 => "Infinity",
        _ => "-Infinity",
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Int(value) => Some(*value as f64),
        Value::Uint(value) => Some(*value as f64),
        Value::Double(value) => Some(*value),
        _ => None,
    }
}

/// A value as `%s` shows it.
fn shown(value: &Value) -> Option<String> {
    Some(match value {
        Value::Null => "null".to_owned(),
        Value::Double(value) if !value.is_finite() => special(*value).to_owned(),
        Value::Double(value) => double_text(*value),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Duration(nanos) => time::duration_text(*nanos),
        Value::List(items) => {
            let items: Option<Vec<String>> = items.iter().map(shown).collect();
            format!("[{}]", items?.join(", "))
        }
        Value::Map(map) | Value::Struct(_, map) => {
            let entries: Option<Vec<String>> =
                map.iter().map(|(key, value)| Some(format!("{}: {}", shown(&key.value())?, shown(value)?))).collect();
            format!("{{{}}}", entries?.join(", "))
        }
        other => other.text().ok()?.to_string(),
    })
}
