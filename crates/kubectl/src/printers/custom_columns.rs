//! `-o custom-columns=NAME:.metadata.name,…`

use serde_json::Value;

use super::jsonpath::{JsonPath, JsonPathError};
use super::{TabWriter, go_template};

/// Why columns cannot be read; in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ColumnsError {
    #[error("custom-columns format specified but no custom columns given")]
    Empty,
    #[error("unexpected custom-columns spec: {0}, expected <header>:<json-path-expr>")]
    NoPath(String),
    #[error("unexpected number of lines in template, expected two")]
    NotTwoLines,
    #[error("number of headers ({headers}) does not match number of expressions ({paths})")]
    Uneven { headers: usize, paths: usize },
    #[error(transparent)]
    Path(#[from] JsonPathError),
}

pub(crate) struct CustomColumns {
    columns: Vec<(String, JsonPath)>,
    no_headers: bool,
    printed_headers: bool,
    tabs: TabWriter,
}

impl CustomColumns {
    pub(crate) fn parse(spec: &str, no_headers: bool) -> Result<CustomColumns, ColumnsError> {
        if spec.is_empty() {
            return Err(ColumnsError::Empty);
        }
        let mut columns = Vec::new();
        for part in spec.split(',') {
            let Some((header, path)) = part.split_once(':').filter(|(_, p)| !p.contains(':') || p.contains('[')) else {
                return Err(ColumnsError::NoPath(part.to_owned()));
            };
            columns.push((header.to_owned(), JsonPath::parse_relaxed(path)?.allow_missing(true)));
        }
        Ok(CustomColumns { columns, no_headers, printed_headers: false, tabs: TabWriter::table() })
    }

    /// A file of two lines: headers, then the paths below them.
    pub(crate) fn parse_file(text: &str, no_headers: bool) -> Result<CustomColumns, ColumnsError> {
        let mut lines = text.lines();
        let (Some(headers), Some(paths)) = (lines.next(), lines.next()) else {
            return Err(ColumnsError::NotTwoLines);
        };
        let (headers, paths): (Vec<_>, Vec<_>) =
            (headers.split_whitespace().collect(), paths.split_whitespace().collect());
        if headers.len() != paths.len() {
            return Err(ColumnsError::Uneven { headers: headers.len(), paths: paths.len() });
        }
        let spec: Vec<String> = headers.iter().zip(&paths).map(|(h, p)| format!("{h}:{p}")).collect();
        CustomColumns::parse(&spec.join(","), no_headers)
    }

    pub(crate) fn print(&mut self, object: &Value) -> Result<String, JsonPathError> {
        let mut text = String::new();
        if !self.no_headers && !self.printed_headers {
            let headers: Vec<&str> = self.columns.iter().map(|(h, _)| h.as_str()).collect();
            text.push_str(&headers.join("\t"));
            text.push('\n');
            self.printed_headers = true;
        }
        match object["items"].as_array().filter(|_| object["kind"].as_str().is_some_and(|k| k.ends_with("List"))) {
            Some(items) => {
                for item in items {
                    self.line(item, &mut text)?;
                }
            }
            None => self.line(object, &mut text)?,
        }
        Ok(self.tabs.format(&text))
    }

    fn line(&self, object: &Value, out: &mut String) -> Result<(), JsonPathError> {
        let mut cells = Vec::new();
        for (_, path) in &self.columns {
            let found = path.find(object)?;
            let texts: Vec<String> = found
                .iter()
                .map(|v| if v.is_null() { "<none>".to_owned() } else { go_template::print_value(v) })
                .collect();
            cells.push(if texts.is_empty() { "<none>".to_owned() } else { texts.join(",") });
        }
        out.push_str(&cells.join("\t"));
        out.push('\n');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_print() {
        let list = json!({"kind": "List", "items": [
            {"metadata": {"name": "a"}, "spec": {"containers": [{"image": "x"}, {"image": "y:1"}]}},
            {"metadata": {"name": "b", "labels": {"k": "v"}}}]});
        for (spec, expected) in [
            ("NAME:.metadata.name", "NAME\na\nb\n"),
            ("N:metadata.name,IMAGES:{.spec.containers[*].image}", "N     IMAGES\na     x,y:1\nb     <none>\n"),
            ("N:.metadata.name,L:.metadata.labels", "N     L\na     <none>\nb     map[k:v]\n"),
        ] {
            assert_eq!(CustomColumns::parse(spec, false).unwrap().print(&list).unwrap(), expected, "{spec}");
        }
        assert_eq!(
            CustomColumns::parse("NAME", false).err().unwrap().to_string(),
            "unexpected custom-columns spec: NAME, expected <header>:<json-path-expr>"
        );
        let mut file = CustomColumns::parse_file("NAME  X\n.metadata.name .metadata.labels.k\n", true).unwrap();
        assert_eq!(file.print(&list).unwrap(), "a     <none>\nb     v\n");
    }
}
