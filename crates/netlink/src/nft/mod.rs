//! Rules for packets in the words of `nft`, told to the kernel without it.
//!
//! Flow: text of one transaction -> [`syntax`] (statements) -> [`declaration`], [`mod@elements`] and [`rule`] (messages) -> a
//! batch that the kernel takes as a whole or not at all. Only what our own tables are written in is understood; anything else is an error
//! that names the statement, and changes nothing. Text stays the form in which rules are written, compared and tested,
//! and is what `nft list ruleset` shows an operator.

mod batch;
mod declaration;
mod elements;
mod query;
mod rule;
mod syntax;

use std::io;

use batch::Batch;
use declaration::Known;
pub use query::{Element, Table, Target, delete_tables, elements, tables};

/// What was wrong with a transaction.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not understood: {0}")]
    Syntax(String),
    #[error("{source}: {statement}")]
    Refused { statement: String, source: io::Error },
    #[error("nftables: {0}")]
    Kernel(#[from] io::Error),
}

/// Carries out one transaction, a statement per line: all of it, or nothing. Blocking, in the network namespace of the
/// calling thread.
pub fn apply(transaction: &str) -> Result<(), Error> {
    let mut batch = Batch::default();
    let mut known = Known::default();
    let lines: Vec<&str> = transaction.lines().collect();
    for (number, line) in lines.iter().enumerate() {
        batch.statement = number as u32;
        if let Some(statement) = syntax::Statement::parse(line) {
            let compiled =
                statement.map_err(|()| Unclear).and_then(|statement| compile(statement, &mut known, &mut batch));
            compiled.map_err(|Unclear| Error::Syntax((*line).to_owned()))?;
        }
    }
    batch.commit().map_err(|refusal| match lines.get(refusal.statement as usize) {
        Some(line) if refusal.is_of_statement => Error::Refused { statement: shortened(line), source: refusal.source },
        _ => Error::Kernel(refusal.source),
    })
}

/// Whether this kernel has packet rules for bridges. Tried, and left as it was: nothing else tells.
pub fn has_bridges() -> bool {
    apply("add table bridge cox-probe\ndelete table bridge cox-probe\n").is_ok()
}

/// A statement that is none of those we write, or that names a set which is not there.
#[derive(Debug)]
struct Unclear;

fn compile(statement: syntax::Statement<'_>, known: &mut Known, batch: &mut Batch) -> Result<(), Unclear> {
    use syntax::{Object, Verb};
    let syntax::Statement { verb, object, table, name, mut rest } = statement;
    match (verb, object) {
        (Verb::Add, Object::Table) => declaration::add_table(table, &mut rest, batch),
        (Verb::Delete, Object::Table) => {
            known.forget(table);
            declaration::delete_table(table, batch);
            Ok(())
        }
        (Verb::Add, Object::Set | Object::Map) => declaration::add_set(table, name, &mut rest, known, batch),
        (Verb::Delete, Object::Set | Object::Map) => {
            declaration::delete_set(table, name, batch);
            Ok(())
        }
        (Verb::Add, Object::Chain) => declaration::add_chain(table, name, &mut rest, batch),
        (Verb::Delete, Object::Chain) => {
            declaration::delete_chain(table, name, batch);
            Ok(())
        }
        (Verb::Flush, Object::Chain) => {
            declaration::flush_chain(table, name, batch);
            Ok(())
        }
        (Verb::Add, Object::Rule) => rule::add(table, name, &mut rest, known, batch),
        (Verb::Add, Object::Element) => elements::change(true, table, name, &mut rest, known, batch),
        (Verb::Delete, Object::Element) => elements::change(false, table, name, &mut rest, known, batch),
        _ => Err(Unclear),
    }?;
    if rest.is_empty() { Ok(()) } else { Err(Unclear) }
}

/// A statement with thousands of elements says enough with its first ones.
fn shortened(line: &str) -> String {
    const ENOUGH: usize = 200;
    match line.char_indices().nth(ENOUGH) {
        Some((at, _)) => format!("{} …", &line[..at]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests;
