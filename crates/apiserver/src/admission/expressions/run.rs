//! Evaluation within upstream's budgets.

use std::time::Instant;

use cel::{Budget, ErrorKind, PER_CALL_LIMIT, Value};

use super::super::metrics::{self, Expression};
use super::{Compiled, Scope};

/// What all expressions of one policy may cost for one write.
const BUDGET: u64 = 10_000_000;
/// And what all match conditions may.
const BUDGET_OF_CONDITIONS: u64 = 2_500_000;

/// Why there is no value.
#[derive(Debug, thiserror::Error)]
pub(in crate::admission) enum Failure {
    /// Of this expression.
    #[error("{0}")]
    Expression(String),
    /// No further expression is run.
    #[error("validation failed due to running out of cost budget, no further validation rules will be run")]
    OutOfBudget,
}

/// Expressions that share a budget.
pub(in crate::admission) struct Run {
    left: u64,
}

impl Run {
    pub(in crate::admission) fn new() -> Self {
        Self { left: BUDGET }
    }

    pub(super) fn of_conditions() -> Self {
        Self { left: BUDGET_OF_CONDITIONS }
    }

    pub(in crate::admission) fn evaluate(&mut self, program: &Compiled, scope: &Scope) -> Result<Value, Failure> {
        let program =
            program.as_ref().map_err(|problem| Failure::Expression(format!("compilation error: {problem}")))?;
        let mut budget = Budget::new(PER_CALL_LIMIT);
        let began = Instant::now();
        let result = program.run(scope, &mut budget);
        metrics::observe_expression(Expression::Evaluated, began.elapsed());
        let cost = budget.used().saturating_add(scope.take_cost());
        self.left = self.left.checked_sub(cost).ok_or(Failure::OutOfBudget)?;
        result.map_err(|error| {
            // An expression that waits for an answer is run again.
            let message = match error.kind {
                ErrorKind::Pending => error.message,
                _ => format!("expression '{}' resulted in error: {error}", program.source()),
            };
            Failure::Expression(message)
        })
    }
}
