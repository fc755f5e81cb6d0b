//! URLs and their parts.

use super::{Row, no_such_overload, text, texts};
use crate::error::Error;
use crate::extension::{Extension, Url};
use crate::value::{Key, Value};

pub(super) const TABLE: &[Row] = &[
    ("url", "(string) kubernetes.URL", |budget, values| match values {
        [Value::String(subject)] => {
            budget.walk(subject.len())?;
            match Url::parse(subject) {
                Ok(url) => Ok(Value::extension(Extension::Url(url))),
                Err(why) => Err(Error::new(format!("URL parse error during conversion from string: {why}"))),
            }
        }
        _ => no_such_overload(),
    }),
    ("isURL", "(string) bool", |budget, values| match values {
        [Value::String(subject)] => {
            budget.walk(subject.len())?;
            Ok(Value::Bool(Url::parse(subject).is_ok()))
        }
        _ => no_such_overload(),
    }),
    ("getScheme", ".(kubernetes.URL) string", |_, values| part(values, |url| text(url.scheme.as_str()))),
    ("getHost", ".(kubernetes.URL) string", |_, values| part(values, |url| text(url.host.as_str()))),
    ("getHostname", ".(kubernetes.URL) string", |_, values| part(values, |url| text(url.hostname()))),
    ("getPort", ".(kubernetes.URL) string", |_, values| part(values, |url| text(url.port()))),
    ("getEscapedPath", ".(kubernetes.URL) string", |_, values| part(values, |url| text(url.path.as_str()))),
    ("getQuery", ".(kubernetes.URL) map(string, list(string))", |_, values| part(values, |url| Ok(query(url)))),
];

fn part(values: &[Value], of: fn(&Url) -> Result<Value, Error>) -> Result<Value, Error> {
    match values {
        [Value::Extension(extension)] => match &**extension {
            Extension::Url(url) => of(url),
            _ => no_such_overload(),
        },
        _ => no_such_overload(),
    }
}

fn query(url: &Url) -> Value {
    Value::map(url.query().into_iter().map(|(key, values)| (Key::String(key.into()), texts(values))).collect())
}
