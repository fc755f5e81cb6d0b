//! The functions a template may call, and Go's way of printing values.

use std::cmp::Ordering;

use base64::Engine;
use serde_json::Value;

use super::error::CallError;
use super::execute::Val;

const NAMES: &[&str] = &[
    "and",
    "or",
    "not",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "len",
    "index",
    "slice",
    "print",
    "printf",
    "println",
    "html",
    "js",
    "urlquery",
    "exists",
    "base64decode",
];

pub(super) fn is_defined(name: &str) -> bool {
    NAMES.contains(&name)
}

pub(super) fn call(name: &str, args: Vec<Val>) -> Result<Val, CallError> {
    let joined = |args: &[Val]| args.iter().map(print).collect::<Vec<_>>();
    Ok(Some(match name {
        "and" | "or" => {
            let decided = args.iter().find(|a| truth(a) == (name == "or"));
            return Ok(decided.or(args.last()).cloned().flatten());
        }
        "not" => Value::Bool(!truth(&first(&args)?)),
        "eq" => {
            let left = first(&args)?;
            if args.len() < 2 {
                return Err(CallError::NothingToCompare);
            }
            Value::Bool(args[1..].iter().any(|r| equal(&left, r)))
        }
        "ne" => Value::Bool(!equal(&first(&args)?, args.get(1).ok_or(CallError::NothingToCompare)?)),
        "lt" | "le" | "gt" | "ge" => {
            let order = order(&first(&args)?, args.get(1).ok_or(CallError::NothingToCompare)?)?;
            Value::Bool(match name {
                "lt" => order == Ordering::Less,
                "le" => order != Ordering::Greater,
                "gt" => order == Ordering::Greater,
                _ => order != Ordering::Less,
            })
        }
        "len" => match first(&args)? {
            Some(Value::String(s)) => s.len().into(),
            Some(Value::Array(a)) => a.len().into(),
            Some(Value::Object(m)) => m.len().into(),
            None | Some(Value::Null) => return Err(CallError::LengthOfNil),
            Some(other) => return Err(CallError::NoLength(type_name(&other))),
        },
        "index" => return index(args),
        "slice" => slice(args)?,
        // Print puts spaces between operands when neither is a string.
        "print" => {
            let mut out = String::new();
            for (i, a) in args.iter().enumerate() {
                let strings =
                    matches!(a, Some(Value::String(_))) || (i > 0 && matches!(args[i - 1], Some(Value::String(_))));
                if i > 0 && !strings {
                    out.push(' ');
                }
                out.push_str(&print(a));
            }
            Value::String(out)
        }
        "println" => Value::String(joined(&args).join(" ") + "\n"),
        "printf" => {
            let Some(Some(Value::String(format))) = args.first() else {
                return Err(CallError::NotString);
            };
            Value::String(printf(format, &args[1..]))
        }
        "html" => Value::String(escape(&joined(&args).join(" "), |c| match c {
            '<' => Some("&lt;"),
            '>' => Some("&gt;"),
            '&' => Some("&amp;"),
            '"' => Some("&#34;"),
            '\'' => Some("&#39;"),
            _ => None,
        })),
        "js" => Value::String(escape(&joined(&args).join(" "), |c| match c {
            '\\' => Some("\\\\"),
            '\'' => Some("\\'"),
            '"' => Some("\\\""),
            '<' => Some("\\u003C"),
            '>' => Some("\\u003E"),
            '&' => Some("\\u0026"),
            '=' => Some("\\u003D"),
            '\n' => Some("\\u000A"),
            _ => None,
        })),
        "urlquery" => Value::String(crate::escape::query_escape(&joined(&args).join(" "))),
        "exists" => {
            let mut current = first(&args)?;
            for key in &args[1..] {
                current = match (current, key) {
                    (Some(Value::Object(mut m)), Some(Value::String(k))) => m.remove(k),
                    (Some(Value::Array(a)), Some(Value::Number(n))) => {
                        n.as_u64().and_then(|n| a.get(n as usize).cloned())
                    }
                    _ => None,
                };
                if current.is_none() {
                    return Ok(Some(Value::Bool(false)));
                }
            }
            Value::Bool(true)
        }
        "base64decode" => {
            let text = print(&first(&args)?);
            let bytes = base64::engine::general_purpose::STANDARD.decode(text)?;
            Value::String(String::from_utf8_lossy(&bytes).into_owned())
        }
        other => return Err(CallError::Undefined(other.to_owned())),
    }))
}

fn first(args: &[Val]) -> Result<Val, CallError> {
    args.first().cloned().ok_or(CallError::NoArguments)
}

/// Empty values are false.
pub(super) fn truth(value: &Val) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Bool(b)) => *b,
        Some(Value::Number(n)) => n.as_f64() != Some(0.0),
        Some(Value::String(s)) => !s.is_empty(),
        Some(Value::Array(a)) => !a.is_empty(),
        Some(Value::Object(m)) => !m.is_empty(),
    }
}

fn equal(a: &Val, b: &Val) -> bool {
    match (a, b) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => a.as_f64() == b.as_f64(),
        (None, Some(Value::Null)) | (Some(Value::Null), None) => true,
        (a, b) => a == b,
    }
}

fn order(a: &Val, b: &Val) -> Result<Ordering, CallError> {
    match (a, b) {
        (Some(Value::Number(a)), Some(Value::Number(b))) => {
            a.as_f64().partial_cmp(&b.as_f64()).ok_or(CallError::Incomparable)
        }
        (Some(Value::String(a)), Some(Value::String(b))) => Ok(a.cmp(b)),
        _ => Err(CallError::DifferentTypes),
    }
}

fn index(args: Vec<Val>) -> Result<Val, CallError> {
    let mut args = args.into_iter();
    let mut current = args.next().flatten();
    for key in args {
        current = match (current, key) {
            (Some(Value::Object(mut m)), Some(Value::String(k))) => m.remove(&k),
            (Some(Value::Array(a)), Some(Value::Number(n))) => {
                let i = n.as_i64().unwrap_or(-1);
                match usize::try_from(i).ok().and_then(|i| a.get(i).cloned()) {
                    Some(v) => Some(v),
                    None => return Err(CallError::OutOfRange(i)),
                }
            }
            (None | Some(Value::Null), _) => return Err(CallError::IndexOfNil),
            (Some(other), _) => return Err(CallError::NotIndexable(type_name(&other))),
        };
    }
    Ok(current)
}

fn slice(args: Vec<Val>) -> Result<Value, CallError> {
    let bound = |i: usize, default: usize| match args.get(i) {
        Some(Some(Value::Number(n))) => n.as_u64().map_or(default, |n| n as usize),
        _ => default,
    };
    let start = bound(1, 0);
    let part = match args.first() {
        Some(Some(Value::String(s))) => s.get(start..bound(2, s.len())).map(Value::from),
        Some(Some(Value::Array(a))) => a.get(start..bound(2, a.len())).map(|items| Value::Array(items.to_vec())),
        _ => return Err(CallError::NotSliceable),
    };
    part.ok_or(CallError::OutOfRange(start as i64))
}

fn escape(text: &str, f: impl Fn(char) -> Option<&'static str>) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match f(c) {
            Some(e) => out.push_str(e),
            None => out.push(c),
        }
    }
    out
}

pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

fn print(value: &Val) -> String {
    match value {
        Some(v) => print_value(v),
        None => "<no value>".to_owned(),
    }
}

/// Go's `%v`.
pub(crate) fn print_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(s) => s.clone(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => match (n.is_f64(), n.as_f64()) {
            (true, Some(f)) => float(f),
            _ => n.to_string(),
        },
        Value::Array(a) => format!("[{}]", a.iter().map(print_value).collect::<Vec<_>>().join(" ")),
        Value::Object(m) => {
            let pairs: Vec<String> = m.iter().map(|(k, v)| format!("{k}:{}", print_value(v))).collect();
            format!("map[{}]", pairs.join(" "))
        }
    }
}

/// `%v` of a float64: shortest form, exponent below 1e-4 and from 1e21.
fn float(f: f64) -> String {
    let magnitude = f.abs();
    if magnitude != 0.0 && !(1e-4..1e21).contains(&magnitude) {
        let text = format!("{f:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = match exponent.strip_prefix('-') {
            Some(d) => ('-', d),
            None => ('+', exponent),
        };
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    format!("{f}")
}

fn printf(format: &str, args: &[Val]) -> String {
    let mut out = String::new();
    let mut args = args.iter();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let (mut left, mut zero, mut plus) = (false, false, false);
        while let Some(&f) = chars.peek() {
            match f {
                '-' => left = true,
                '0' => zero = true,
                '+' => plus = true,
                '#' | ' ' => {}
                _ => break,
            }
            chars.next();
        }
        let mut number = || {
            let mut n = None;
            while let Some(d) = chars.peek().and_then(|c| c.to_digit(10)) {
                n = Some(n.unwrap_or(0) * 10 + d as usize);
                chars.next();
            }
            n
        };
        let width = number().unwrap_or(0);
        let mut precision = None;
        if chars.peek() == Some(&'.') {
            chars.next();
            let mut n = 0;
            while let Some(d) = chars.peek().and_then(|c| c.to_digit(10)) {
                n = n * 10 + d as usize;
                chars.next();
            }
            precision = Some(n);
        }
        let Some(verb) = chars.next() else {
            out.push_str("%!(NOVERB)");
            break;
        };
        if verb == '%' {
            out.push('%');
            continue;
        }
        let Some(arg) = args.next() else {
            out.push_str(&format!("%!{verb}(MISSING)"));
            continue;
        };
        let value = arg.clone().unwrap_or(Value::Null);
        let text = match (verb, &value) {
            ('v', v) => print_value(v),
            ('s', Value::String(s)) => precision.map_or_else(|| s.clone(), |p| s.chars().take(p).collect()),
            ('s', Value::Array(_) | Value::Object(_)) => print_value(&value),
            ('q', Value::String(s)) => api::field::quote(s),
            ('d', Value::Number(n)) if !n.is_f64() => match (plus, n.as_i64()) {
                (true, Some(i)) if i >= 0 => format!("+{i}"),
                _ => n.to_string(),
            },
            ('t', Value::Bool(b)) => b.to_string(),
            ('x', Value::Number(n)) => format!("{:x}", n.as_i64().unwrap_or(0)),
            ('x', Value::String(s)) => s.bytes().map(|b| format!("{b:02x}")).collect(),
            ('f', Value::Number(n)) if n.is_f64() => {
                format!("{:.*}", precision.unwrap_or(6), n.as_f64().unwrap_or(0.0))
            }
            ('g', Value::Number(n)) if n.is_f64() => float(n.as_f64().unwrap_or(0.0)),
            ('c', Value::Number(n)) => {
                n.as_u64().and_then(|n| char::from_u32(n as u32)).map(String::from).unwrap_or_default()
            }
            ('T', v) => type_name(v).to_owned(),
            (verb, Value::Null) => format!("%!{verb}(<nil>)"),
            (verb, v) => format!("%!{verb}({}={})", type_name(v), print_value(v)),
        };
        let missing = width.saturating_sub(text.chars().count());
        if left {
            out.push_str(&text);
            out.extend(std::iter::repeat_n(' ', missing));
        } else {
            out.extend(std::iter::repeat_n(if zero { '0' } else { ' ' }, missing));
            out.push_str(&text);
        }
    }
    let extra: Vec<String> = args.map(|a| format!("{}={}", a.as_ref().map_or("<nil>", type_name), print(a))).collect();
    if !extra.is_empty() {
        out.push_str(&format!("%!(EXTRA {})", extra.join(", ")));
    }
    out
}
