//! How much the aliases of a document may expand to.
//!
//! The rule for values is upstream's (`allowedAliasRatio` of go-yaml): the more a document decodes to, the smaller the part
//! of it that may come from aliases. The parser below follows aliases without a word, so what the text itself holds is
//! taken for as much as its bytes can be. Text is counted as well: Go shares the strings that an alias repeats, we copy them.

use std::cell::Cell;

/// What upstream says of such a document.
pub(crate) const EXCESSIVE: &str = "document contains excessive aliasing";

/// Up to so many values nearly all may come from aliases, from so many on a tenth.
const FEW: f64 = 400_000.0;
const MANY: f64 = 4_000_000.0;
/// No value is longer in memory than twice its text; beyond that aliases may repeat so many bytes.
const REPEATED_TEXT: usize = 16 << 20;

/// What one document has become so far.
pub(crate) struct Expansion {
    source: usize,
    values: Cell<usize>,
    text: Cell<usize>,
}

impl Expansion {
    pub(crate) fn of(source: &[u8]) -> Self {
        Self { source: source.len(), values: Cell::new(0), text: Cell::new(0) }
    }

    /// Counts one more value or key with so many bytes of text.
    pub(crate) fn charge(&self, text: usize) -> Result<(), &'static str> {
        self.values.set(self.values.get() + 1);
        self.text.set(self.text.get().saturating_add(text));
        // The shortest values, `{?,?}` and `[a,a]`, take a byte each.
        let aliased = self.values.get().saturating_sub(self.source + 2);
        let too_many = aliased > 100 && aliased as f64 / self.values.get() as f64 > allowed_ratio(self.values.get());
        match too_many || self.text.get() > 2 * self.source + REPEATED_TEXT {
            true => Err(EXCESSIVE),
            false => Ok(()),
        }
    }
}

/// The part of so many values that may come from aliases.
fn allowed_ratio(values: usize) -> f64 {
    0.99 - 0.89 * ((values as f64 - FEW) / (MANY - FEW)).clamp(0.0, 1.0)
}
