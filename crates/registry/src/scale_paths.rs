//! Where the replicas of a custom kind are.

use serde_json::{Map, Value};

/// Where the parts of a Scale stand in an object.
#[derive(Clone, Debug)]
pub struct ScalePaths {
    pub spec: Vec<String>,
    pub status: Vec<String>,
    pub selector: Option<Vec<String>>,
}

impl ScalePaths {
    /// The replicas that are wanted.
    pub fn replicas(&self, object: &Map<String, Value>) -> i64 {
        at(object, &self.spec).and_then(Value::as_i64).unwrap_or(0)
    }
}

/// The value at a path of keys.
pub(crate) fn at<'v>(object: &'v Map<String, Value>, path: &[String]) -> Option<&'v Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(object.get(first)?, |value, key| value.get(key))
}
