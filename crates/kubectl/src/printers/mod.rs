//! How objects become text: `-o` names a [`Printer`]; without it `get` prints the server's Table and the other
//! commands print `kind.group/name verbed`.

mod custom_columns;
pub(crate) mod go_order;
pub(crate) mod go_template;
pub(crate) mod json;
pub(crate) mod jsonpath;
mod kyaml;
mod sort;
pub(crate) mod table;
mod tabwriter;

pub(crate) use custom_columns::CustomColumns;
pub(crate) use sort::{sort_objects, sort_rows};
pub(crate) use tabwriter::TabWriter;

use serde_json::Value;

use crate::cli::Invocation;
use crate::context::{Context, DryRun, with_dry_run};
use crate::failure::{Failure, Result};
use go_template::Template;
use jsonpath::JsonPath;

/// What `-o` (with `--template`) asked for.
pub(crate) enum Output {
    /// Nothing: each command has its own default.
    Default,
    Wide,
    Name,
    Json,
    Yaml,
    KYaml,
    JsonPath {
        path: JsonPath,
        template: String,
        as_json: bool,
    },
    GoTemplate {
        template: Template,
        text: String,
        allow_missing: bool,
    },
    CustomColumns(CustomColumns),
}

const FORMATS: &str =
    "go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,yaml";
const GET_FORMATS: &str = "custom-columns,custom-columns-file,go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,wide,yaml";

/// `KUBECTL_KYAML=false` takes the format away.
fn has_kyaml() -> bool {
    !std::env::var("KUBECTL_KYAML").is_ok_and(|value| value.eq_ignore_ascii_case("false"))
}

fn formats(columns: bool) -> String {
    let all = if columns { GET_FORMATS } else { FORMATS };
    if has_kyaml() { all.to_owned() } else { all.replace("kyaml,", "") }
}

impl Output {
    /// Reads `--output`, `--template` and `--allow-missing-template-keys`.
    pub(crate) fn from_flags(flags: &Invocation) -> Result<Output> {
        let format = flags.string("output");
        let template = flags.string("template");
        let allow_missing = !flags.has_flag("allow-missing-template-keys") || flags.bool("allow-missing-template-keys");
        // `get` alone prints columns, and only it knows `--no-headers`.
        let columns = flags.has_flag("no-headers") && flags.has_flag("sort-by");
        let (name, inline) = match format.split_once('=') {
            Some((n, v)) => (n, Some(v.to_owned())),
            None => (format.as_str(), None),
        };
        let argument = |what: &str| -> Result<String> {
            let text = inline.clone().unwrap_or_else(|| template.clone());
            if text.is_empty() {
                return Err(Failure::message(format!("{what} format specified but no template given")));
            }
            Ok(text)
        };
        let read = |path: String, what: &str| -> Result<String> {
            std::fs::read_to_string(&path).map_err(|e| {
                Failure::message(format!(
                    "error reading --template {path}, {}\n",
                    crate::go_errors::go_io_error(what, &path, &e)
                ))
            })
        };
        let go = |text: String| -> Result<Output> {
            let template = Template::parse(&text)
                .map_err(|e| Failure::message(format!("error parsing template {text}, {e}\n")))?;
            Ok(Output::GoTemplate { template, text, allow_missing })
        };
        let path = |text: String, as_json: bool| -> Result<Output> {
            let path = JsonPath::parse(&text)
                .map_err(|e| Failure::message(format!("error parsing jsonpath {text}, {e}\n")))?
                .allow_missing(allow_missing);
            Ok(Output::JsonPath { path, template: text, as_json })
        };
        match name {
            "" if template.is_empty() => Ok(Output::Default),
            "" => go(template),
            "wide" if columns => Ok(Output::Wide),
            "name" => Ok(Output::Name),
            "json" => Ok(Output::Json),
            "yaml" => Ok(Output::Yaml),
            "kyaml" if has_kyaml() => Ok(Output::KYaml),
            "jsonpath" => path(argument("template")?, false),
            "jsonpath-as-json" => path(argument("template")?, true),
            "jsonpath-file" => path(read(argument("template")?, "open")?, false),
            "go-template" | "template" => go(argument("template")?),
            "go-template-file" | "templatefile" => go(read(argument("template")?, "open")?),
            "custom-columns" if columns => {
                let spec = inline.unwrap_or(template);
                Ok(Output::CustomColumns(CustomColumns::parse(&spec, flags.bool("no-headers")).map_err(Failure::of)?))
            }
            "custom-columns-file" if columns => {
                let file = argument("custom-columns")?;
                let text = std::fs::read_to_string(&file).map_err(|e| {
                    Failure::message(format!(
                        "error reading template {file}, {}\n",
                        crate::go_errors::go_io_error("open", &file, &e)
                    ))
                })?;
                Ok(Output::CustomColumns(
                    CustomColumns::parse_file(&text, flags.bool("no-headers")).map_err(Failure::of)?,
                ))
            }
            // The wide form of commands that print no table of their own is their plain one.
            "wide" if flags.has_flag("show-labels") => Ok(Output::Wide),
            _ => Err(Failure::message(format!(
                "unable to match a printer suitable for the output format \"{name}\", allowed formats are: {}",
                formats(columns)
            ))),
        }
    }

    pub(crate) fn is_human(&self) -> bool {
        matches!(self, Output::Default | Output::Wide)
    }
}

/// Prints objects one after another.
pub(crate) struct Printer {
    output: Output,
    /// For the default form: `created`, `configured (dry run)`.
    pub(crate) operation: String,
    keep_managed_fields: bool,
    /// Whether upstream holds the objects as Go types, which shows in the order of their fields.
    typed: bool,
    printed: usize,
}

impl Context {
    /// A printer whose default form says what was done, dry runs included.
    pub(crate) fn printer(&self, operation: &str, dry_run: DryRun) -> Result<Printer> {
        Printer::new(&self.flags, with_dry_run(operation, dry_run))
    }
}

impl Printer {
    pub(crate) fn new(flags: &Invocation, operation: impl Into<String>) -> Result<Printer> {
        Ok(Printer {
            output: Output::from_flags(flags)?,
            operation: operation.into(),
            keep_managed_fields: flags.has_flag("show-managed-fields") && flags.bool("show-managed-fields"),
            typed: false,
            printed: 0,
        })
    }

    pub(crate) fn with(output: Output, keep_managed_fields: bool) -> Printer {
        Printer { output, operation: String::new(), keep_managed_fields, typed: false, printed: 0 }
    }

    /// For objects that upstream holds as Go types.
    pub(crate) fn typed(self) -> Printer {
        Printer { typed: true, ..self }
    }

    /// Whether the default `kind/name verbed` form is printed.
    pub(crate) fn is_default(&self) -> bool {
        matches!(self.output, Output::Default)
    }

    pub(crate) fn print(&mut self, object: &Value) -> Result<String> {
        let stripped;
        let object = if !self.keep_managed_fields && matches!(self.output, Output::Json | Output::Yaml | Output::KYaml)
        {
            stripped = without_managed_fields(object);
            &stripped
        } else {
            object
        };
        let first = self.printed == 0;
        self.printed += 1;
        Ok(match &mut self.output {
            Output::Default | Output::Wide => {
                let name = resource_name(object);
                if self.operation.is_empty() { format!("{name}\n") } else { format!("{name} {}\n", self.operation) }
            }
            Output::Name => names(object).into_iter().map(|n| n + "\n").collect(),
            Output::Json if self.typed => json::pretty(&go_order::Typed::new(object)),
            Output::Json => json::pretty(object),
            Output::Yaml => {
                let text = api::yaml::to_string(object);
                if first { text } else { format!("---\n{text}") }
            }
            Output::KYaml => format!("---\n{}", kyaml::to_string(object)),
            Output::JsonPath { path, as_json: true, .. } => {
                let found = path.find(object).map_err(Failure::of)?;
                json::pretty(&Value::Array(found.into_iter().map(|v| v.into_owned()).collect()))
            }
            Output::JsonPath { path, template, .. } => path.render(object).map_err(|e| {
                Failure::message(format!(
                    "error executing jsonpath \"{template}\": Error executing template: {e}. Printing more information for debugging the template:\n\ttemplate was:\n\t\t{template}\n\tobject given to jsonpath engine was:\n\t\t{}\n\n\n",
                    jsonpath::go_syntax(object)
                ))
            })?,
            Output::GoTemplate { template, text, allow_missing } => {
                template.render(object, *allow_missing).map_err(|failed| template_failure(failed, text, object))?
            }
            Output::CustomColumns(columns) => columns.print(object).map_err(Failure::of)?,
        })
    }
}

/// What there was of the output, then template and object for whoever looks for the mistake, on standard output as with
/// upstream's kubectl; the message is for standard error.
fn template_failure(failed: go_template::Failed, text: &str, object: &Value) -> Failure {
    let why = format!("template: output: executing \"output\": {}", failed.why);
    let output = format!(
        "{}Error executing template: {why}. Printing more information for debugging the template:\n\ttemplate was:\n\t\t{text}\n\traw data was:\n\t\t{}\n\tobject given to template engine was:\n\t\t{}\n\n",
        failed.output,
        json::compact(object),
        go_template::print_value(object)
    );
    let message = format!("error executing template {}: {why}", serde_json::to_string(text).unwrap_or_default());
    Failure::Template { output, message }
}

fn without_managed_fields(object: &Value) -> Value {
    let mut object = object.clone();
    let strip = |o: &mut Value| {
        if let Some(meta) = o.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.remove("managedFields");
        }
    };
    strip(&mut object);
    if let Some(items) = object.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(strip);
    }
    object
}

/// `deployment.apps/web`
pub(crate) fn resource_name(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or("").to_lowercase();
    let name = object["metadata"]["name"].as_str().unwrap_or("");
    match object["apiVersion"].as_str().and_then(|v| v.split_once('/')) {
        Some((group, _)) => format!("{kind}.{group}/{name}"),
        None => format!("{kind}/{name}"),
    }
}

fn names(object: &Value) -> Vec<String> {
    match object["items"].as_array() {
        Some(items) if object["kind"].as_str().is_some_and(|k| k.ends_with("List")) => {
            items.iter().map(resource_name).collect()
        }
        _ => vec![resource_name(object)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_carry_the_group() {
        for (object, expected) in [
            (json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}), "pod/a"),
            (json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}}), "deployment.apps/a"),
        ] {
            assert_eq!(resource_name(&object), expected);
        }
    }
}
