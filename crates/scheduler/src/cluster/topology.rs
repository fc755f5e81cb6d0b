//! Topologies: for each label key that constraints name, a column with every node's value as a number.

use std::collections::HashMap;

use super::node::{NodeId, Row};

/// The node has no such label.
pub(crate) const NO_VALUE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ColumnId(u32);

#[derive(Debug, Default)]
pub(crate) struct Topology {
    by_key: HashMap<String, ColumnId>,
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    key: String,
    ids: HashMap<String, u32>,
    values: Vec<u32>,
}

impl Column {
    fn read(&mut self, at: usize, row: &Row) {
        if self.values.len() <= at {
            self.values.resize(at + 1, NO_VALUE);
        }
        let next = self.ids.len() as u32;
        self.values[at] = match row.label(&self.key) {
            None => NO_VALUE,
            Some(value) => match self.ids.get(value) {
                Some(id) => *id,
                None => *self.ids.entry(value.to_owned()).or_insert(next),
            },
        };
    }
}

impl Topology {
    /// The column of a key. It is made when somebody first asks for it.
    pub(crate) fn column(&mut self, key: &str, rows: &[Row]) -> ColumnId {
        if let Some(id) = self.by_key.get(key) {
            return *id;
        }
        let mut column = Column { key: key.to_owned(), ids: HashMap::new(), values: Vec::with_capacity(rows.len()) };
        rows.iter().enumerate().for_each(|(at, row)| column.read(at, row));
        let id = ColumnId(self.columns.len() as u32);
        self.columns.push(column);
        self.by_key.insert(key.to_owned(), id);
        id
    }

    /// A node's labels changed.
    pub(crate) fn read(&mut self, node: NodeId, row: &Row) {
        self.columns.iter_mut().for_each(|column| column.read(node.at(), row));
    }

    pub(crate) fn value(&self, column: ColumnId, node: NodeId) -> u32 {
        self.values(column).get(node.at()).copied().unwrap_or(NO_VALUE)
    }

    /// All nodes' values, by node id.
    pub(crate) fn values(&self, column: ColumnId) -> &[u32] {
        &self.columns[column.0 as usize].values
    }

    /// How many values the column has seen: its numbers are smaller.
    pub(crate) fn size(&self, column: ColumnId) -> usize {
        self.columns[column.0 as usize].ids.len()
    }
}
