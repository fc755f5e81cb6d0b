use super::env;
use crate::{Env, Struct, Type};

fn refusal(expression: &str) -> String {
    match env().compile(expression) {
        Ok(_) => panic!("{expression} compiled"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn mistakes_are_shown_where_they_are() {
    for (expression, expected) in [
        ("foo", "ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')\n | foo\n | ^"),
        (
            "object.x > 1 && foo.bar",
            "ERROR: <input>:1:17: undeclared reference to 'foo' (in container '')\n | object.x > 1 && foo.bar\n | ................^",
        ),
        (
            "n > '1'",
            "ERROR: <input>:1:3: found no matching overload for '_>_' applied to '(int, string)'\n | n > '1'\n | ..^",
        ),
        (
            "'a' +\n n",
            "ERROR: <input>:1:5: found no matching overload for '_+_' applied to '(string, int)'\n | 'a' +\n | ....^",
        ),
        (
            "s.contains(1)",
            "ERROR: <input>:1:11: found no matching overload for 'contains' applied to 'string.(int)'\n | s.contains(1)\n | ..........^",
        ),
        ("n.x", "ERROR: <input>:1:2: type 'int' does not support field selection\n | n.x\n | .^"),
        ("nope(1)", "ERROR: <input>:1:5: undeclared reference to 'nope' (in container '')\n | nope(1)\n | ....^"),
        ("[1, 'a']", "ERROR: <input>:1:5: expected type 'int' but found 'string'\n | [1, 'a']\n | ....^"),
        ("s.matches('(')", "ERROR: <input>:1:11: invalid matches argument\n | s.matches('(')\n | ..........^"),
        ("duration('x')", "ERROR: <input>:1:10: invalid duration argument\n | duration('x')\n | .........^"),
        ("has(n)", "ERROR: <input>:1:5: invalid argument to has() macro\n | has(n)\n | ....^"),
        (
            "n.all(x, true)",
            "ERROR: <input>:1:1: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)\n | n.all(x, true)\n | ^",
        ),
    ] {
        assert_eq!(refusal(expression), expected, "{expression}");
    }
    for expression in
        ["... [] bad expression", "1 +", "(1", "[1", "'open", "a b", "1 = 2", "a &&", "x.", "{1}", "\u{0}", "for", ""]
    {
        let shown = refusal(expression);
        assert!(shown.starts_with("ERROR: <input>:1:"), "{expression}: {shown}");
    }
}

#[test]
fn results_must_be_of_a_type() {
    let refused = |expression: &str, wanted: &[Type]| env().compile_as(expression, wanted).err().map(|e| e.to_string());
    assert_eq!(refused("n > 1", &[Type::Bool]), None);
    assert_eq!(refused("object.x", &[Type::Bool]).as_deref(), Some("must evaluate to bool but got dyn"));
    assert_eq!(refused("n", &[Type::Bool]).as_deref(), Some("must evaluate to bool but got int"));
    assert_eq!(refused("'x' + object.y", &[Type::String]), None);
    let either = [Type::String, Type::Null];
    assert_eq!(refused("true", &either).as_deref(), Some("must evaluate to one of [string null_type] but got bool"));
    let shown = refused("x", &either).unwrap_or_default();
    assert!(shown.starts_with("compilation failed: ERROR: <input>:1:1: undeclared reference"), "{shown}");
}

#[derive(Debug)]
struct Spec;

impl Struct for Spec {
    fn name(&self) -> &str {
        "Spec"
    }

    fn field(&self, name: &str) -> Option<Type> {
        match name {
            "replicas" => Some(Type::Int),
            "names" => Some(Type::list(Type::String)),
            "labels" => Some(Type::map(Type::String, Type::String)),
            "child" => Some(Type::Struct(std::sync::Arc::new(Spec))),
            _ => None,
        }
    }
}

#[test]
fn known_fields_are_checked() {
    let env = Env::default().with("self", Type::Struct(std::sync::Arc::new(Spec)));
    for (expression, expected) in [
        ("self.replicas > 1 && self.names.all(n, n.size() > 2)", None),
        ("self.child.child.replicas == self.replicas", None),
        ("self.child == null || has(self.child.names)", None),
        ("self.labels.all(k, self.labels[k] != '')", None),
        ("self.?replicas.orValue(1) > 0", None),
        ("self.child.?names[?0].orValue('') == 'x'", None),
        ("self.missing", Some("undefined field 'missing'")),
        ("self.child.missing", Some("undefined field 'missing'")),
        ("self.replicas > '1'", Some("found no matching overload for '_>_' applied to '(int, string)'")),
        ("self.names.all(n, n > 1)", Some("found no matching overload for '_>_' applied to '(string, int)'")),
        ("self.replicas == 'x'", Some("found no matching overload for '_==_' applied to '(int, string)'")),
        ("self == 1", Some("found no matching overload for '_==_' applied to '(Spec, int)'")),
    ] {
        match (env.compile(expression), expected) {
            (Ok(_), None) => {}
            (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{expression}: {error}"),
            (found, _) => panic!("{expression}: {found:?}"),
        }
    }
}

#[test]
fn used_variables_are_known() {
    let program = env().compile("[1].all(x, x == n || object.y)").expect("it compiles");
    assert!(program.mentions("n") && program.mentions("object") && !program.mentions("s"));
}
