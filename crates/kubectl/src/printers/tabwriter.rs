//! Elastic tab stops, as Go's text/tabwriter lays them out with spaces.
//!
//! A cell ends at a tab; what follows the last tab of a line belongs to no column. A column is a run of consecutive
//! lines that have a cell there, so a line without tabs separates two blocks with widths of their own.

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
        let ends = text.ends_with('\n');
        let body = text.strip_suffix('\n').unwrap_or(text);
        let lines: Vec<Vec<&str>> = body.split('\n').map(|l| l.split('\t').collect()).collect();
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

    #[test]
    fn widths_are_remembered_between_flushes() {
        let mut w = TabWriter::table();
        assert_eq!(w.format("a-very-long-name\t1\n"), "a-very-long-name   1\n");
        assert_eq!(w.format("b\t2\n"), "b                  2\n");
        w.forget();
        assert_eq!(w.format("b\t2\n"), "b     2\n");
    }
}
