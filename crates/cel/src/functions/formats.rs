//! Named formats of strings: `format.dns1123Label().validate(x)`.

use api::validation;
use base64::Engine;

use super::{Row, no_such_overload, texts};
use crate::extension::{Extension, Format, Url};
use crate::time;
use crate::value::Value;

const NONE: &str = "() kubernetes.NamedFormat";

/// One row per format: the function that names it finds it here by its place.
static FORMATS: [Format; 13] = [
    Format { name: "dns1123Label", problems: validation::dns1123_label },
    Format { name: "dns1123Subdomain", problems: validation::dns1123_subdomain },
    Format { name: "dns1035Label", problems: validation::dns1035_label },
    Format { name: "qualifiedName", problems: validation::qualified_name },
    Format { name: "dns1123LabelPrefix", problems: |text| validation::dns1123_label(&without_dash(text)) },
    Format { name: "dns1123SubdomainPrefix", problems: |text| validation::dns1123_subdomain(&without_dash(text)) },
    Format { name: "dns1035LabelPrefix", problems: |text| validation::dns1035_label(&without_dash(text)) },
    Format { name: "labelValue", problems: validation::label_value },
    Format { name: "uri", problems: |text| Url::parse(text).err().into_iter().collect() },
    Format { name: "uuid", problems: |text| unless(is_uuid(text), "does not match the UUID format") },
    Format {
        name: "byte",
        problems: |text| unless(base64::engine::general_purpose::STANDARD.decode(text).is_ok(), "invalid base64"),
    },
    Format {
        name: "date",
        problems: |text| unless(text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(), "invalid date"),
    },
    Format { name: "datetime", problems: |text| unless(time::timestamp(text).is_some(), "invalid datetime") },
];

pub(super) const TABLE: &[Row] = &[
    ("format.dns1123Label", NONE, |_, _| Ok(at(0))),
    ("format.dns1123Subdomain", NONE, |_, _| Ok(at(1))),
    ("format.dns1035Label", NONE, |_, _| Ok(at(2))),
    ("format.qualifiedName", NONE, |_, _| Ok(at(3))),
    ("format.dns1123LabelPrefix", NONE, |_, _| Ok(at(4))),
    ("format.dns1123SubdomainPrefix", NONE, |_, _| Ok(at(5))),
    ("format.dns1035LabelPrefix", NONE, |_, _| Ok(at(6))),
    ("format.labelValue", NONE, |_, _| Ok(at(7))),
    ("format.uri", NONE, |_, _| Ok(at(8))),
    ("format.uuid", NONE, |_, _| Ok(at(9))),
    ("format.byte", NONE, |_, _| Ok(at(10))),
    ("format.date", NONE, |_, _| Ok(at(11))),
    ("format.datetime", NONE, |_, _| Ok(at(12))),
    ("format.named", "(string) optional(kubernetes.NamedFormat)", |_, values| match values {
        [Value::String(name)] => {
            let found = FORMATS.iter().position(|format| *format.name == **name);
            Ok(found.map_or(Value::NONE, |found| Value::some(at(found))))
        }
        _ => no_such_overload(),
    }),
    ("validate", ".(kubernetes.NamedFormat, string) optional(list(string))", |budget, values| {
        let [Value::Extension(extension), Value::String(text)] = values else { return no_such_overload() };
        let Extension::Format(format) = &**extension else { return no_such_overload() };
        budget.spend(10)?;
        budget.walk(text.len())?;
        let problems = (format.problems)(text);
        Ok(if problems.is_empty() { Value::NONE } else { Value::some(texts(problems)) })
    }),
];

fn at(place: usize) -> Value {
    Value::extension(Extension::Format(&FORMATS[place]))
}

fn unless(fits: bool, problem: &str) -> Vec<String> {
    if fits { Vec::new() } else { vec![problem.to_owned()] }
}

/// A prefix may end with a dash, as what follows makes a whole name of it.
fn without_dash(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(rest) => format!("{rest}a"),
        None => text.to_owned(),
    }
}

fn is_uuid(text: &str) -> bool {
    let digits: String = text.chars().filter(|letter| *letter != '-').collect();
    digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}
