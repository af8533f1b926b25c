//! Tables for terminals and for pages.

/// Words in rows and columns; the first column is a label, the others are numbers, but perhaps for the last.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    ends_with_words: bool,
}

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Self { header: header.to_vec(), rows: Vec::new(), ends_with_words: false }
    }

    /// The same, with words in the last column.
    pub(crate) fn ending_with_words(header: &[&'static str]) -> Self {
        Self { ends_with_words: true, ..Self::new(header) }
    }

    /// Adds a row of as many cells as the header has.
    pub(crate) fn push(&mut self, row: Vec<String>) {
        debug_assert_eq!(row.len(), self.header.len());
        self.rows.push(row);
    }

    /// Columns below each other, two spaces between them.
    pub(crate) fn text(&self) -> String {
        let widths = self.widths();
        let line = |cells: Vec<&str>| {
            let last = cells.len().saturating_sub(1);
            let padded = cells.into_iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                column if column == 0 || (column == last && self.ends_with_words) => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        let rows = self.rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
        std::iter::once(line(self.header.clone())).chain(rows).collect()
    }

    /// With the bars of Markdown.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
        let rule = format!("|---|{}\n", "---:|".repeat(self.header.len().saturating_sub(1)));
        let rows = self.rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
        [line(self.header.clone()), rule].into_iter().chain(rows).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let width = |cell: &str| cell.chars().count();
        let widest = |column: usize| self.rows.iter().map(|row| width(&row[column])).max().unwrap_or(0);
        self.header.iter().enumerate().map(|(column, name)| width(name).max(widest(column))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_for_each_reader() {
        let mut table = Table::new(&["test", "tokens/s", "x"]);
        table.push(vec!["pp512".to_owned(), "7".to_owned(), String::new()]);
        table.push(vec!["tg64 @ d4096".to_owned(), "123.4".to_owned(), "1.00".to_owned()]);
        let text = "\
test          tokens/s     x
pp512                7
tg64 @ d4096     123.4  1.00
";
        assert_eq!(table.text(), text);
        let markdown = "\
| test | tokens/s | x |
|---|---:|---:|
| pp512 | 7 |  |
| tg64 @ d4096 | 123.4 | 1.00 |
";
        assert_eq!(table.markdown(), markdown);
    }
}
