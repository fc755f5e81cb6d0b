//! Go's text/template over JSON, for `-o go-template` and `--template`.
//!
//! `parse` makes a tree, `execute` walks it with the object as dot, `functions` are the built-ins plus kubectl's
//! `exists` and `base64decode`.

mod error;
mod execute;
mod functions;
mod parse;

use error::{ExecuteError, ParseError};
pub(crate) use functions::print_value;

use std::collections::HashMap;

use serde_json::Value;

/// A template that did not get to its end.
#[derive(Debug)]
pub(crate) struct Failed {
    /// What it had written by then.
    pub(crate) output: String,
    pub(crate) why: ExecuteError,
}

pub(crate) struct Template {
    main: Vec<Node>,
    defined: HashMap<String, Vec<Node>>,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Text(String),
    Action(Pipeline),
    If { condition: Pipeline, then: Vec<Node>, otherwise: Vec<Node> },
    With { value: Pipeline, then: Vec<Node>, otherwise: Vec<Node> },
    Range { over: Pipeline, body: Vec<Node>, otherwise: Vec<Node> },
    Template { name: String, data: Option<Pipeline> },
    Break,
    Continue,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Pipeline {
    /// `$x` or `$i, $x`
    variables: Vec<String>,
    /// `=` instead of `:=`
    assigns: bool,
    commands: Vec<Vec<Operand>>,
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    Dot,
    Nil,
    Field(Vec<String>),
    Variable(String, Vec<String>),
    Constant(Value),
    Function(String),
    Paren(Box<Pipeline>, Vec<String>),
}

impl Template {
    pub(crate) fn parse(text: &str) -> Result<Template, ParseError> {
        parse::parse(text)
    }

    /// With `allow_missing` an absent map key reads as `<no value>`, else it is an error.
    pub(crate) fn render(&self, data: &Value, allow_missing: bool) -> Result<String, Failed> {
        execute::execute(self, data, allow_missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn templates_render() {
        let data = json!({"kind": "Pod", "n": 3, "ok": true, "empty": [], "secret": "aGVsbG8=",
            "metadata": {"name": "web", "labels": {"b": "2", "a": "1"}},
            "items": [{"name": "x", "v": 1}, {"name": "y", "v": 2}]});
        for (template, expected) in [
            ("{{.kind}}/{{.metadata.name}}", "Pod/web"),
            ("{{range .items}}{{.name}},{{end}}", "x,y,"),
            ("{{range $i, $e := .items}}{{$i}}={{$e.name}} {{end}}", "0=x 1=y "),
            ("{{range $k, $v := .metadata.labels}}{{$k}}:{{$v}};{{end}}", "a:1;b:2;"),
            ("{{range .empty}}x{{else}}none{{end}}", "none"),
            ("{{if .ok}}yes{{else}}no{{end}}", "yes"),
            ("{{if and .ok (eq .n 3)}}three{{end}}", "three"),
            ("{{if eq .kind \"Node\" \"Pod\"}}match{{end}}", "match"),
            ("{{if not .missing}}absent{{else if .ok}}x{{end}}", "absent"),
            ("{{with .metadata}}{{.name}}{{end}}", "web"),
            ("{{with $x := .n}}{{$x}}{{end}}", "3"),
            ("{{.missing}}", "<no value>"),
            ("{{len .items}} {{index .items 1 \"name\"}}", "2 y"),
            ("{{printf \"%s-%d %q %v\" .kind 7 \"a\" .metadata.labels}}", "Pod-7 \"a\" map[a:1 b:2]"),
            ("{{.secret | base64decode}}", "hello"),
            ("{{if exists . \"metadata\" \"name\"}}has{{end}}{{if exists . \"x\"}}no{{end}}", "has"),
            ("a {{- .kind -}} b", "aPodb"),
            ("{{/* note */}}x", "x"),
            ("{{define \"t\"}}<{{.}}>{{end}}{{template \"t\" .kind}}", "<Pod>"),
            ("{{range .items}}{{if eq .v 2}}{{break}}{{end}}{{.name}}{{end}}", "x"),
            ("{{$x := 1}}{{$x = 2}}{{$x}}", "2"),
            ("{{lt 1 2}} {{ge 1.5 2.0}} {{or .missing \"d\"}} {{println \"a\" 1}}", "true false d a 1\n"),
            ("{{.items}}", "[map[name:x v:1] map[name:y v:2]]"),
            ("{{(index .items 0).name}}", "x"),
            ("{{slice .kind 1 2}}{{html \"<a>\"}}{{js \"'\"}}", "o&lt;a&gt;\\'"),
            ("{{range 2}}{{.}}{{end}}", "01"),
        ] {
            assert_eq!(Template::parse(template).unwrap().render(&data, true).unwrap(), expected, "{template}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (template, expected) in [
            ("{{.x", "unclosed action"),
            ("{{foo}}", "function \"foo\" not defined"),
            ("{{if .x}}", "unexpected EOF"),
            ("{{end}}", "unexpected {{end}}"),
            ("{{$x}}", "undefined variable \"$x\""),
        ] {
            let error = Template::parse(template).err().unwrap().to_string();
            assert!(error.contains(expected), "{template}: {error}");
        }
        let strict = Template::parse("{{.x}}").unwrap().render(&json!({}), false).unwrap_err();
        assert_eq!(strict.why.to_string(), "map has no entry for key \"x\"");
        let late = Template::parse("a{{.a}}b{{.x}}c").unwrap().render(&json!({"a": 1}), false).unwrap_err();
        assert_eq!(late.output, "a1b");
    }
}
