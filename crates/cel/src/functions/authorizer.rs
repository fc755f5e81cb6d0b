//! Questions to the authorizer. The objects behind them are the caller's; here is only what may be asked.

use super::{Row, no_such_overload};
use crate::error::Error;
use crate::value::Value;

const RESOURCE: &str = ".(kubernetes.authorization.ResourceCheck, string) kubernetes.authorization.ResourceCheck";

pub(super) const TABLE: &[Row] = &[
    ("path", ".(kubernetes.authorization.Authorizer, string) kubernetes.authorization.PathCheck", |_, values| {
        ask("path", values)
    }),
    ("group", ".(kubernetes.authorization.Authorizer, string) kubernetes.authorization.GroupCheck", |_, values| {
        ask("group", values)
    }),
    (
        "serviceAccount",
        ".(kubernetes.authorization.Authorizer, string, string) kubernetes.authorization.Authorizer",
        |_, values| ask("serviceAccount", values),
    ),
    (
        "resource",
        ".(kubernetes.authorization.GroupCheck, string) kubernetes.authorization.ResourceCheck",
        |_, values| ask("resource", values),
    ),
    ("subresource", RESOURCE, |_, values| ask("subresource", values)),
    ("namespace", RESOURCE, |_, values| ask("namespace", values)),
    ("name", RESOURCE, |_, values| ask("name", values)),
    ("fieldSelector", RESOURCE, |_, values| ask("fieldSelector", values)),
    ("labelSelector", RESOURCE, |_, values| ask("labelSelector", values)),
    (
        "check",
        ".(kubernetes.authorization.PathCheck, string) kubernetes.authorization.Decision; \
         .(kubernetes.authorization.ResourceCheck, string) kubernetes.authorization.Decision",
        |budget, values| {
            // What a question costs upstream.
            budget.spend(350_000)?;
            ask("check", values)
        },
    ),
    ("errored", ".(kubernetes.authorization.Decision) bool", |_, values| ask("errored", values)),
    ("error", ".(kubernetes.authorization.Decision) string", |_, values| ask("error", values)),
    ("allowed", ".(kubernetes.authorization.Decision) bool", |_, values| ask("allowed", values)),
    ("reason", ".(kubernetes.authorization.Decision) string", |_, values| ask("reason", values)),
];

fn ask(function: &str, values: &[Value]) -> Result<Value, Error> {
    match values {
        [Value::Opaque(object), arguments @ ..] => {
            object.call(function, arguments).unwrap_or_else(|| Err(Error::no_such_overload()))
        }
        _ => no_such_overload(),
    }
}
