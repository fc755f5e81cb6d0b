//! What a run may cost. Costs follow upstream's: about one per step, more for what walks over a list or text.

use crate::error::Error;
use crate::stack;

/// Upstream's limit for one expression.
pub const PER_CALL_LIMIT: u64 = 1_000_000;

/// Reading text costs this much less than a step per letter.
const LETTERS_PER_STEP: usize = 10;

#[derive(Debug)]
pub struct Budget {
    limit: u64,
    left: u64,
    /// How many evaluations of variables this one is part of.
    nesting: u32,
    /// How deep a tree the present stack still bears.
    pub(crate) room: u32,
}

/// How deep evaluations of variables may nest.
const DEEPEST: u32 = 64;

impl Budget {
    pub fn new(limit: u64) -> Self {
        Self { limit, left: limit, nesting: 0, room: stack::SHALLOW }
    }

    /// For an expression that is evaluated on behalf of the present one, on top of its stack.
    pub fn nested(&self, limit: u64) -> Result<Self, Error> {
        if self.nesting == DEEPEST {
            return Err(Error::new("variables are nested too deeply"));
        }
        Ok(Self { limit, left: limit, nesting: self.nesting + 1, room: self.room })
    }

    /// What has been used.
    pub fn used(&self) -> u64 {
        self.limit - self.left
    }

    /// Whatever is larger is too much to walk over.
    pub(crate) fn most(&self) -> usize {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        most.saturating_add(1).saturating_mul(LETTERS_PER_STEP)
    }

    pub fn spend(&mut self, cost: u64) -> Result<(), Error> {
        match self.left.checked_sub(cost) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(Error::cost())
            }
        }
    }

    /// The cost of reading so many letters, bytes or elements.
    pub(crate) fn walk(&mut self, size: usize) -> Result<(), Error> {
        self.spend(size.div_ceil(LETTERS_PER_STEP) as u64)
    }

    /// The cost of one text per element of another: searching, matching.
    pub(crate) fn cross(&mut self, one: usize, other: usize) -> Result<(), Error> {
        let (one, other) = (one.div_ceil(LETTERS_PER_STEP) as u64, other.div_ceil(4) as u64);
        self.spend(one.max(1).saturating_mul(other.max(1)))
    }
}
