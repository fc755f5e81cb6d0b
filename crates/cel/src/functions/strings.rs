//! Functions of strings. Positions count letters, not bytes.

use super::{Row, no_such_overload, printing, text, texts};
use crate::budget::Budget;
use crate::error::Error;
use crate::value::Value;

const TEST: &str = ".(string, string) bool";
const SEARCH: &str = ".(string, string) int; .(string, string, int) int; .(list(A), A) int";

pub(super) const TABLE: &[Row] = &[
    ("contains", TEST, |budget, values| test(budget, values, |text, part| text.contains(part))),
    ("startsWith", TEST, |budget, values| test(budget, values, |text, part| text.starts_with(part))),
    ("endsWith", TEST, |budget, values| test(budget, values, |text, part| text.ends_with(part))),
    ("charAt", ".(string, int) string", |budget, values| {
        let [Value::String(subject), Value::Int(at)] = values else { return no_such_overload() };
        let letters = letters(budget, subject)?;
        match usize::try_from(*at) {
            Ok(at) if at < letters.len() => text(letters[at].to_string()),
            Ok(at) if at == letters.len() => text(""),
            _ => Err(out_of_range(*at)),
        }
    }),
    ("indexOf", SEARCH, |budget, values| search(budget, values, false)),
    ("lastIndexOf", SEARCH, |budget, values| search(budget, values, true)),
    ("lowerAscii", ".(string) string", |budget, values| map(budget, values, |text| text.to_ascii_lowercase())),
    ("upperAscii", ".(string) string", |budget, values| map(budget, values, |text| text.to_ascii_uppercase())),
    ("trim", ".(string) string", |budget, values| map(budget, values, |text| text.trim().to_owned())),
    ("strings.quote", "(string) string", |budget, values| map(budget, values, printing::quoted)),
    ("reverse", ".(string) string; .(list(A)) list(A)", |budget, values| match values {
        [Value::List(items)] => {
            budget.walk(items.len())?;
            Ok(Value::list(items.iter().rev().cloned().collect()))
        }
        _ => map(budget, values, |text| text.chars().rev().collect()),
    }),
    ("replace", ".(string, string, string) string; .(string, string, string, int) string", |budget, values| {
        let (subject, from, to, limit) = match values {
            [Value::String(subject), Value::String(from), Value::String(to)] => (subject, from, to, -1),
            [Value::String(subject), Value::String(from), Value::String(to), Value::Int(limit)] => {
                (subject, from, to, *limit)
            }
            _ => return no_such_overload(),
        };
        budget.walk(subject.len())?;
        let count = match from.is_empty() {
            true => subject.chars().count() + 1,
            false => subject.matches(&**from).count(),
        };
        let count = usize::try_from(limit).unwrap_or(usize::MAX).min(count);
        // Paid before it is made.
        budget.walk(count.saturating_mul(to.len()).saturating_add(subject.len()))?;
        text(subject.replacen(&**from, to, count))
    }),
    ("split", ".(string, string) list(string); .(string, string, int) list(string)", |budget, values| {
        let (subject, by, limit) = match values {
            [Value::String(subject), Value::String(by)] => (subject, by, -1),
            [Value::String(subject), Value::String(by), Value::Int(limit)] => (subject, by, *limit),
            _ => return no_such_overload(),
        };
        budget.spend(subject.len() as u64)?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        if limit == 0 {
            return Ok(Value::list(Vec::new()));
        }
        if !by.is_empty() {
            return Ok(texts(subject.splitn(limit, &**by)));
        }
        let mut parts: Vec<String> = subject.chars().map(String::from).collect();
        if parts.len() > limit {
            let rest = parts.split_off(limit - 1).concat();
            parts.push(rest);
        }
        Ok(texts(parts))
    }),
    ("join", ".(list(string)) string; .(list(string), string) string", |budget, values| {
        let (items, between) = match values {
            [Value::List(items)] => (items, ""),
            [Value::List(items), Value::String(between)] => (items, &**between),
            _ => return no_such_overload(),
        };
        let length = values[0].size(budget.most()).saturating_add(items.len().saturating_mul(between.len()));
        budget.walk(length)?;
        let mut joined = String::new();
        for (i, item) in items.iter().enumerate() {
            let Value::String(item) = item else {
                return Err(Error::new(format!("join: invalid input: {}", item.type_name())));
            };
            if i > 0 {
                joined.push_str(between);
            }
            joined.push_str(item);
        }
        text(joined)
    }),
    ("substring", ".(string, int) string; .(string, int, int) string", |budget, values| {
        let (subject, start, end) = match values {
            [Value::String(subject), Value::Int(start)] => (subject, *start, None),
            [Value::String(subject), Value::Int(start), Value::Int(end)] => (subject, *start, Some(*end)),
            _ => return no_such_overload(),
        };
        let letters = letters(budget, subject)?;
        let length = letters.len() as i64;
        let end = end.unwrap_or(length);
        if start > end {
            return Err(Error::new(format!("invalid substring range. start: {start}, end: {end}")));
        }
        if start < 0 || start > length {
            return Err(out_of_range(start));
        }
        if end > length {
            return Err(out_of_range(end));
        }
        text(letters[start as usize..end as usize].iter().collect::<String>())
    }),
    ("format", ".(string, list(dyn)) string", |budget, values| match values {
        [Value::String(format), Value::List(arguments)] => text(printing::format(budget, format, arguments)?),
        _ => no_such_overload(),
    }),
];

fn out_of_range(at: i64) -> Error {
    Error::new(format!("index out of range: {at}"))
}

fn letters(budget: &mut Budget, text: &str) -> Result<Vec<char>, Error> {
    budget.walk(text.len())?;
    Ok(text.chars().collect())
}

fn test(budget: &mut Budget, values: &[Value], holds: fn(&str, &str) -> bool) -> Result<Value, Error> {
    match values {
        [Value::String(subject), Value::String(part)] => {
            budget.walk(subject.len())?;
            Ok(Value::Bool(holds(subject, part)))
        }
        _ => no_such_overload(),
    }
}

fn map(budget: &mut Budget, values: &[Value], of: fn(&str) -> String) -> Result<Value, Error> {
    match values {
        [Value::String(subject)] => {
            budget.walk(subject.len())?;
            text(of(subject))
        }
        _ => no_such_overload(),
    }
}

/// The place of a part of a text, or of an element of a list; -1 if there is none.
fn search(budget: &mut Budget, values: &[Value], from_end: bool) -> Result<Value, Error> {
    if let [Value::List(items), wanted] = values {
        budget.walk(values[0].size(budget.most()))?;
        let found = match from_end {
            true => items.iter().rposition(|item| item.equals(wanted)),
            false => items.iter().position(|item| item.equals(wanted)),
        };
        return Ok(Value::Int(found.map_or(-1, |at| at as i64)));
    }
    let (subject, part, from) = match values {
        [Value::String(subject), Value::String(part)] => (subject, part, None),
        [Value::String(subject), Value::String(part), Value::Int(from)] => (subject, part, Some(*from)),
        _ => return no_such_overload(),
    };
    budget.cross(subject.len(), part.len())?;
    let subject = letters(budget, subject)?;
    let part = letters(budget, part)?;
    if let Some(from) = from
        && (from < 0 || from > subject.len() as i64)
    {
        return Err(out_of_range(from));
    }
    let last = subject.len().checked_sub(part.len());
    let fits = |at: &usize| subject[*at..].starts_with(&part);
    let found = last.and_then(|last| match from_end {
        true => (0..=from.map_or(last, |from| last.min(from as usize))).rev().find(fits),
        false => (from.unwrap_or(0) as usize..=last).find(fits),
    });
    Ok(Value::Int(found.map_or(-1, |at| at as i64)))
}
