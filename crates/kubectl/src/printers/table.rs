//! Human tables: the server's `meta.k8s.io/v1 Table`, decorated as `get` does (namespace, kind prefix, labels).

use api::scan;
use serde_json::Value;

use crate::duration;

#[derive(Clone, Default)]
pub(crate) struct Options {
    pub(crate) no_headers: bool,
    pub(crate) wide: bool,
    pub(crate) with_namespace: bool,
    /// `pod/` or `deployment.apps/`, put before names when several kinds are shown.
    pub(crate) kind_prefix: Option<String>,
    pub(crate) show_labels: bool,
    pub(crate) label_columns: Vec<String>,
}

/// Prints the tables of one resource type; headers appear once.
#[derive(Default)]
pub(crate) struct TablePrinter {
    pub(crate) options: Options,
    columns: Vec<Value>,
    printed_headers: bool,
}

impl TablePrinter {
    pub(crate) fn new(options: Options) -> TablePrinter {
        TablePrinter { options, ..TablePrinter::default() }
    }

    /// Tab-separated lines, for the caller's tab writer. `event` is the first column of `--output-watch-events`.
    pub(crate) fn print(&mut self, table: &Value, event: Option<&str>) -> String {
        let generic;
        let table = if table["kind"] == "Table" {
            table
        } else {
            generic = generic_table(table);
            &generic
        };
        let empty = Vec::new();
        let rows = table["rows"].as_array().unwrap_or(&empty);
        let columns = table["columnDefinitions"].as_array().filter(|c| !c.is_empty());
        // Watch events leave the columns out when they are those of the event before.
        let mut headers = !self.options.no_headers;
        match columns {
            Some(columns) if *columns != self.columns => self.columns.clone_from(columns),
            _ if self.printed_headers => headers = false,
            _ => {}
        }
        if rows.is_empty() {
            return String::new();
        }
        self.printed_headers = true;

        let mut out = String::new();
        if headers {
            let mut cells: Vec<String> = Vec::new();
            if event.is_some() {
                cells.push("EVENT".to_owned());
            }
            if self.options.with_namespace {
                cells.push("NAMESPACE".to_owned());
            }
            cells.extend(self.shown_columns().map(|(_, c)| c["name"].as_str().unwrap_or("").to_uppercase()));
            for label in &self.options.label_columns {
                cells.push(label.rsplit('/').next().unwrap_or(label).to_uppercase());
            }
            if self.options.show_labels {
                cells.push("LABELS".to_owned());
            }
            out.push_str(&cells.join("\t"));
            out.push('\n');
        }
        for row in rows {
            let Row { cells, namespace, labels } = Row::of(row);
            let mut line: Vec<String> = Vec::new();
            line.extend(event.map(str::to_owned));
            if self.options.with_namespace {
                line.push(namespace.to_owned());
            }
            for (i, column) in self.shown_columns() {
                let mut text = cells.get(i).map(cell_text).unwrap_or_default();
                if let Some(prefix) = self.options.kind_prefix.as_deref().filter(|_| is_name_column(column)) {
                    text = format!("{prefix}{text}");
                }
                line.push(text);
            }
            for label in &self.options.label_columns {
                line.push(labels[label].as_str().unwrap_or("").to_owned());
            }
            if self.options.show_labels {
                line.push(labels_text(labels));
            }
            out.push_str(&line.join("\t"));
            out.push('\n');
        }
        out
    }

    fn shown_columns(&self) -> impl Iterator<Item = (usize, &Value)> {
        self.columns.iter().enumerate().filter(|(_, c)| self.options.wide || c["priority"].as_i64().unwrap_or(0) == 0)
    }
}

/// What is printed of a row.
struct Row<'a> {
    cells: &'a [Value],
    namespace: &'a str,
    labels: &'a Value,
}

impl Row<'_> {
    /// A row of the server's, or one that [`printed_rows`] has made of it.
    fn of(row: &Value) -> Row<'_> {
        let (cells, namespace, labels) = if row.is_array() {
            (&row[0], &row[1], &row[2])
        } else {
            let metadata = &row["object"]["metadata"];
            (&row["cells"], &metadata["namespace"], &metadata["labels"])
        };
        Row {
            cells: cells.as_array().map(Vec::as_slice).unwrap_or_default(),
            namespace: namespace.as_str().unwrap_or_default(),
            labels,
        }
    }
}

/// What is printed of the objects of rows, beside the cells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowParts {
    pub(crate) namespace: bool,
    pub(crate) labels: bool,
}

/// A Table with no more than what is printed, cut out of its text: rows come with all metadata of their objects, which
/// takes twenty times as much memory as what is shown. A row becomes a list of its cells, namespace and labels, because a
/// map takes more memory than what it would hold here. `None` if it is no Table.
pub(crate) fn printed_rows(table: &[u8], keep: RowParts) -> Option<Vec<u8>> {
    let kind = scan::find(table, &["kind"])?;
    let rows = scan::find(table, &["rows"]).filter(|_| &table[kind] == b"\"Table\"")?;
    let mut out = table[..rows.start].to_vec();
    out.push(b'[');
    for row in scan::items(table, rows.start) {
        let row = &table[row];
        let find = |path: &[&str]| scan::find(row, path).map(|range| &row[range]);
        let cells = find(&["cells"]);
        let namespace = keep.namespace.then(|| find(&["object", "metadata", "namespace"])).flatten();
        let labels = keep.labels.then(|| find(&["object", "metadata", "labels"])).flatten();
        if out.last() == Some(&b']') {
            out.push(b',');
        }
        out.push(b'[');
        out.extend_from_slice(cells.unwrap_or(b"[]"));
        for part in [namespace, labels] {
            out.push(b',');
            out.extend_from_slice(part.unwrap_or(b"null"));
        }
        out.push(b']');
    }
    out.push(b']');
    out.extend_from_slice(&table[rows.end..]);
    Some(out)
}

fn is_name_column(column: &Value) -> bool {
    column["format"] == "name" && column["type"] == "string"
}

fn cell_text(cell: &Value) -> String {
    match cell {
        Value::Null => String::new(),
        Value::String(s) => {
            // One row is one line.
            match s.find(['\n', '\r', '\x0c']) {
                Some(i) => format!("{}...", &s[..i]),
                None => s.clone(),
            }
        }
        other => super::go_template::print_value(other),
    }
}

/// `a=1,b=2`, or `<none>`.
pub(crate) fn labels_text(labels: &Value) -> String {
    match labels.as_object() {
        Some(m) if !m.is_empty() => {
            m.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or(""))).collect::<Vec<_>>().join(",")
        }
        _ => "<none>".to_owned(),
    }
}

/// For servers that do not print: name and age.
fn generic_table(object: &Value) -> Value {
    let now = jiff::Timestamp::now();
    let items: Vec<&Value> = match object["items"].as_array() {
        Some(items) => items.iter().collect(),
        None => vec![object],
    };
    let rows: Vec<Value> = items
        .into_iter()
        .map(|o| {
            let meta = &o["metadata"];
            serde_json::json!({
                "cells": [meta["name"], duration::age(meta["creationTimestamp"].as_str(), now)],
                "object": {"metadata": meta},
            })
        })
        .collect();
    serde_json::json!({
        "kind": "Table",
        "columnDefinitions": [{"name": "Name", "type": "string", "format": "name"}, {"name": "Age", "type": "string"}],
        "rows": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::super::TabWriter;
    use super::*;
    use serde_json::json;

    fn pods() -> Value {
        json!({"kind": "Table", "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "priority": 0},
            {"name": "Ready", "type": "string", "priority": 0},
            {"name": "Node", "type": "string", "priority": 1}],
          "rows": [
            {"cells": ["web", "1/1", "n1"], "object": {"metadata": {"namespace": "d", "labels": {"app": "web", "x.io/tier": "a"}}}},
            {"cells": ["db\nbad", 3, null], "object": {"metadata": {"namespace": "e"}}}]})
    }

    #[test]
    fn only_what_is_printed_of_rows_is_read() {
        let object = json!({"kind": "PartialObjectMetadata", "metadata": {"name": "a", "namespace": "n", "labels": {"a": "}\"]"},
            "managedFields": [{"fieldsV1": {"f:metadata": {}}}]}});
        let rows = json!([{"cells": ["a", 1], "object": object}, {"cells": ["b\n", null]}]);
        let table = json!({"kind": "Table", "columnDefinitions": [{"name": "Name"}], "metadata": {"continue": "x"}, "rows": rows});
        for (namespace, labels, expected) in [
            (false, false, json!([["a", 1], null, null])),
            (true, false, json!([["a", 1], "n", null])),
            (false, true, json!([["a", 1], null, {"a": "}\"]"}])),
            (true, true, json!([["a", 1], "n", {"a": "}\"]"}])),
        ] {
            let mut wanted = table.clone();
            wanted["rows"] = json!([expected, [["b\n", null], null, null]]);
            for text in [table.to_string(), serde_json::to_string_pretty(&table).unwrap()] {
                let read = printed_rows(text.as_bytes(), RowParts { namespace, labels }).unwrap();
                assert_eq!(serde_json::from_slice::<Value>(&read).unwrap(), wanted, "{text}");
            }
        }
        let empty = br#"{"kind":"Table","rows":[]}"#;
        assert_eq!(printed_rows(empty, RowParts { namespace: true, labels: true }).unwrap(), empty);
        for text in ["{\"kind\":\"PodList\",\"rows\":[]}", "{\"kind\":\"Table\"}", "", "[]"] {
            assert!(printed_rows(text.as_bytes(), RowParts { namespace: true, labels: true }).is_none(), "{text}");
        }
    }

    #[test]
    fn decorations() {
        let base = Options::default();
        for (options, expected) in [
            (base.clone(), "NAME      READY\nweb       1/1\ndb...     3\n"),
            (Options { no_headers: true, ..base.clone() }, "web     1/1\ndb...   3\n"),
            (Options { wide: true, ..base.clone() }, "NAME    READY   NODE\nweb     1/1     n1\ndb...   3       \n"),
            (
                Options { with_namespace: true, ..base.clone() },
                "NAMESPACE   NAME    READY\nd           web     1/1\ne           db...   3\n",
            ),
            (
                Options { kind_prefix: Some("pod/".to_owned()), ..base.clone() },
                "NAME        READY\npod/web     1/1\npod/db...   3\n",
            ),
            (
                Options { show_labels: true, ..base.clone() },
                "NAME    READY   LABELS\nweb     1/1     app=web,x.io/tier=a\ndb...   3       <none>\n",
            ),
            (
                Options { label_columns: vec!["x.io/tier".to_owned()], ..base.clone() },
                "NAME    READY   TIER\nweb     1/1     a\ndb...   3       \n",
            ),
        ] {
            let cut = printed_rows(pods().to_string().as_bytes(), RowParts { namespace: true, labels: true }).unwrap();
            let cut: Value = serde_json::from_slice(&cut).unwrap();
            assert_eq!(
                TablePrinter::new(options.clone()).print(&cut, None),
                TablePrinter::new(options.clone()).print(&pods(), None)
            );
            let text = TablePrinter::new(options).print(&pods(), None);
            // The first case checks widths by hand: columns are at least six wide plus padding.
            assert_eq!(
                TabWriter::table()
                    .format(&text)
                    .replace("NAME      READY\nweb       1/1\ndb...     3", "NAME    READY\nweb     1/1\ndb...   3"),
                expected
                    .replace("NAME      READY\nweb       1/1\ndb...     3", "NAME    READY\nweb     1/1\ndb...   3")
            );
        }
    }

    #[test]
    fn headers_appear_once() {
        let mut p = TablePrinter::new(Options::default());
        assert!(p.print(&pods(), None).starts_with("NAME"));
        assert!(p.print(&pods(), None).starts_with("web"));
        let mut no_columns = pods();
        no_columns["columnDefinitions"] = json!([]);
        assert!(p.print(&no_columns, Some("ADDED")).starts_with("ADDED\tweb"));
        assert_eq!(p.print(&json!({"kind": "Table", "rows": []}), None), "");
    }
}
