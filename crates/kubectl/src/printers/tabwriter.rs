//! Elastic tab stops, as Go's text/tabwriter lays them out with spaces.
//!
//! A cell ends at a tab; what follows the last tab of a line belongs to no column. A column is a run of consecutive
//! lines that have a cell there, so a line without tabs separates two blocks with widths of their own.
//!
//! Whatever people read goes through here, so this is also where commands for their terminals end ([`escaped`]).

use api::terminal::escaped;

/// The cells of a line; more tabs stay in the last one. Each column is one call deeper, and values of objects have tabs.
const MAX_CELLS: usize = 256;

pub(crate) struct TabWriter {
    min_width: usize,
    padding: usize,
    /// Widths of earlier output; a later flush is never narrower. `None` forgets (describe, config).
    remembered: Option<Vec<usize>>,
}

impl TabWriter {
    /// For tables of objects: columns keep their width from one flush to the next, so that `--watch` lines up.
    pub(crate) fn table() -> TabWriter {
        TabWriter { min_width: 6, padding: 3, remembered: Some(Vec::new()) }
    }

    /// For describe.
    pub(crate) fn describe() -> TabWriter {
        TabWriter { min_width: 0, padding: 2, remembered: None }
    }

    /// For `rollout history`: two columns, two spaces apart.
    pub(crate) fn describe_history() -> TabWriter {
        TabWriter { min_width: 0, padding: 2, remembered: None }
    }

    pub(crate) fn forget(&mut self) {
        if let Some(widths) = &mut self.remembered {
            widths.clear();
        }
    }

    pub(crate) fn format(&mut self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let text = escaped(text);
        let ends = text.ends_with('\n');
        let body = text.strip_suffix('\n').unwrap_or(&text);
        let lines: Vec<Vec<&str>> = body.split('\n').map(|l| l.splitn(MAX_CELLS, '\t').collect()).collect();
        let mut out = String::with_capacity(text.len() * 2);
        let mut widths = Vec::new();
        self.block(&lines, &mut widths, &mut out);
        if !ends {
            out.pop();
        }
        out
    }

    fn block(&mut self, lines: &[Vec<&str>], widths: &mut Vec<usize>, out: &mut String) {
        let column = widths.len();
        let mut start = 0;
        let mut i = 0;
        while i < lines.len() {
            if column + 1 >= lines[i].len() {
                i += 1;
                continue;
            }
            write_lines(&lines[start..i], widths, out);
            start = i;
            let mut width = self.min_width;
            while i < lines.len() && column + 1 < lines[i].len() {
                width = width.max(lines[i][column].chars().count() + self.padding);
                i += 1;
            }
            if let Some(remembered) = &mut self.remembered {
                if column < remembered.len() {
                    width = width.max(remembered[column]);
                    remembered[column] = width;
                } else if column == remembered.len() {
                    remembered.push(width);
                }
            }
            widths.push(width);
            self.block(&lines[start..i], widths, out);
            widths.pop();
            start = i;
        }
        write_lines(&lines[start..], widths, out);
    }
}

fn write_lines(lines: &[Vec<&str>], widths: &[usize], out: &mut String) {
    for line in lines {
        for (j, cell) in line.iter().enumerate() {
            out.push_str(cell);
            if let Some(width) = widths.get(j).filter(|_| j + 1 < line.len()) {
                out.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count())));
            }
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_within_a_block() {
        for (text, expected) in [
            ("NAME\tAGE\nweb\t3s\n", "NAME   AGE\nweb    3s\n"),
            ("NAME\tREADY\tAGE\na-long-name\t1/1\t5m\n", "NAME          READY   AGE\na-long-name   1/1     5m\n"),
            ("", ""),
        ] {
            assert_eq!(TabWriter::table().format(text), expected);
        }
        assert_eq!(
            TabWriter::describe().format("Name:\tx\nLabels:\ta=b\n\tc=d\nIPs:\nLong name:\ty\n"),
            "Name:    x\nLabels:  a=b\n         c=d\nIPs:\nLong name:  y\n"
        );
    }

    /// CVE-2021-25743: what is described or listed may have been written by anybody.
    #[test]
    fn security_tables_and_descriptions_command_no_terminal() {
        let text = "Annotations:\ta=\x1b[2J\u{9b}31m\nMessage:\tall is well\rfailed\u{8}\u{202e}\n";
        for mut writer in [TabWriter::table(), TabWriter::describe(), TabWriter::describe_history()] {
            let shown = writer.format(text);
            assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
            let parts = ["a=^[[2J\\u{9b}31m", "all is well\\rfailed\\u{8}\\u{202e}"];
            assert!(parts.into_iter().all(|part| shown.contains(part)), "{shown:?}");
        }
    }

    #[test]
    fn security_a_value_of_tabs_is_no_depth() {
        let shown = TabWriter::describe().format(&format!("data:\t{}end\n", "\t".repeat(1 << 20)));
        assert!(shown.starts_with("data:  ") && shown.ends_with("end\n"));
    }

    #[test]
    fn widths_are_remembered_between_flushes() {
        let mut w = TabWriter::table();
        assert_eq!(w.format("a-very-long-name\t1\n"), "a-very-long-name   1\n");
        assert_eq!(w.format("b\t2\n"), "b                  2\n");
        w.forget();
        assert_eq!(w.format("b\t2\n"), "b     2\n");
    }
}
