//! Match conditions: all must be true for a webhook or a policy to be asked.

use cel::{Type, Value};
use k8s_openapi::api::admissionregistration::v1::MatchCondition;
use registry::admissionregistration::environment::{Compiler, Names};

use super::run::{Failure, Run};
use super::{Compiled, Scope};

pub(in crate::admission) struct Conditions(Vec<Compiled>);

impl Conditions {
    pub(in crate::admission) fn new(conditions: &[MatchCondition], params: bool) -> Self {
        let names = Names { params, authorizer: true, ..Names::default() };
        let compiler = Compiler::default();
        let compile = |condition: &MatchCondition| compiler.compile(condition.expression.trim(), names, &[Type::Bool]);
        Self(conditions.iter().map(compile).collect())
    }

    pub(in crate::admission) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One that is false decides, even if others fail; otherwise a failure does.
    pub(in crate::admission) fn decide(&self, scope: &Scope) -> Result<bool, Failure> {
        let mut run = Run::of_conditions();
        let mut problems = Vec::new();
        for condition in &self.0 {
            match run.evaluate(condition, scope) {
                Ok(Value::Bool(false)) => return Ok(false),
                Ok(_) => {}
                Err(Failure::Expression(problem)) => problems.push(problem),
                Err(Failure::OutOfBudget) => return Err(Failure::OutOfBudget),
            }
        }
        if problems.is_empty() { Ok(true) } else { Err(Failure::Expression(api::field::aggregate(&problems))) }
    }
}
