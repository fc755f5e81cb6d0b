//! Tables: an expression, and what it comes to.

mod compiling;
mod hostile;
mod libraries;

use serde_json::json;

use crate::{Budget, Env, Error, PER_CALL_LIMIT, Type, Value};

fn env() -> Env {
    Env::default().with("object", Type::Dyn).with("n", Type::Int).with("s", Type::String)
}

fn run(expression: &str) -> Result<Value, Error> {
    let program = env().compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    let object = Value::from_json(&json!({
        "metadata": {"name": "web", "labels": {"app": "web", "a/b": "c"}},
        "spec": {"replicas": 3, "ratio": 0.5, "ports": [80, 443], "empty": [], "nothing": null,
            "containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:2"}]},
    }));
    let variables = move |name: &str| match name {
        "object" => Some(object.clone()),
        "n" => Some(Value::Int(7)),
        "s" => Some(Value::String("hello".into())),
        _ => None,
    };
    program.run(&variables, &mut Budget::new(PER_CALL_LIMIT))
}

/// Each expression is true.
fn holds(expressions: &[&str]) {
    for expression in expressions {
        match run(expression) {
            Ok(Value::Bool(true)) => {}
            other => panic!("{expression}: {other:?}"),
        }
    }
}

fn fails(expressions: &[(&str, &str)]) {
    for (expression, message) in expressions {
        match run(expression) {
            Err(error) => assert_eq!(error.message, *message, "{expression}"),
            Ok(value) => panic!("{expression}: {value:?}"),
        }
    }
}

#[test]
fn operators_and_values() {
    holds(&[
        "1 + 2 * 3 == 7",
        "(1 + 2) * 3 == 9",
        "7 / 2 == 3 && -7 / 2 == -3 && 7 % 3 == 1 && -7 % 3 == -1",
        "1u + 2u == 3u",
        "1.5 * 2.0 == 3.0",
        "0xff == 255 && 1e3 == 1000.0 && .5 == 0.5",
        "-9223372036854775808 < 0",
        "'a' + 'b' == 'ab'",
        "b'a' + b'b' == b'ab'",
        "b'\\xff' != b'ÿ'",
        "[1, 2] + [3] == [1, 2, 3]",
        "1 < 2 && 2.0 > 1 && 1u <= 1 && 'a' < 'b'",
        "dyn(1) == 1.0 && dyn(1) == 1u && dyn(1) != '1'",
        "!false && !!true",
        "true ? true : false",
        "2 in [1, 2] && !(3 in [1, 2])",
        "'a' in {'a': 1} && !('b' in {'a': 1})",
        "{'a': {'b': 1}}.a.b == 1",
        "{'a': 1}['a'] == 1 && [1, 2][1] == 2",
        "{1: 'x'}[1] == 'x' && dyn({1: 'x'})[1u] == 'x'",
        "object.spec.replicas == 3 && object['spec'].ratio == 0.5",
        "object.metadata.labels['a/b'] == 'c'",
        "object.spec.nothing == null",
        "n == 7 && s == 'hello'",
        r#""\u00e4\n\t\"" == 'ä' + "\n\t\"""#,
        "r'\\n' == '\\\\n'",
        "'''a'b''' == \"a'b\"",
        "type(1) == int && type('') == string && type(null) == null_type && type([]) == list",
        "type(timestamp('2020-01-01T00:00:00Z')) == google.protobuf.Timestamp",
        "size('äöü') == 3 && size([1, 2]) == 2 && size({'a': 1}) == 1 && 'abc'.size() == 3",
        "// a comment\ntrue",
        "object.metadata.`name` == 'web'",
        "[1, 2,] == [1, 2] && {'a': 1,} == {'a': 1}",
        "1 == 1 && 2 == 2 || false",
    ]);
    fails(&[
        ("1 / (n - 7)", "division by zero"),
        ("1 % (n - 7)", "modulus by zero"),
        ("9223372036854775807 + n", "integer overflow"),
        ("uint(n) - 8u", "unsigned integer overflow"),
        ("object.spec.missing", "no such key: missing"),
        ("object.spec['missing']", "no such key: missing"),
        ("object.spec.ports[5]", "index out of bounds: 5"),
        ("object.spec.replicas + 'x'", "no such overload"),
        ("object.spec.replicas.x", "no such key: x"),
        ("int('x')", "strconv.ParseInt: parsing \"x\": invalid syntax"),
        ("{'a': 1, 'a': 2}", "Failed with repeated key"),
        ("!object.spec", "no such overload"),
    ]);
}

#[test]
fn logic_absorbs_errors() {
    holds(&[
        "true || object.missing",
        "object.missing || true",
        "!(false && object.missing)",
        "!(object.missing && false)",
        "[1, 2].exists(x, x == 2 || object.missing)",
        "!['a', 'b'].all(x, x == 'c' && object.missing)",
        "[1, 2].exists(x, x / 0 == 1 || x == 2)",
    ]);
    fails(&[
        ("object.missing || false", "no such key: missing"),
        ("true && object.missing", "no such key: missing"),
        ("[1].all(x, object.missing)", "no such key: missing"),
    ]);
}

#[test]
fn macros() {
    holds(&[
        "has(object.spec) && !has(object.missing) && has(object.spec.replicas)",
        "has({'a': 1}.a) && !has({'a': 1}.b)",
        "[1, 2, 3].all(x, x > 0) && ![1, 2].all(x, x > 1) && [].all(x, false)",
        "[1, 2, 3].exists(x, x == 3) && ![].exists(x, true)",
        "[1, 2, 3].exists_one(x, x == 3) && ![1, 1].exists_one(x, x == 1)",
        "[1, 2, 3].filter(x, x > 1) == [2, 3]",
        "[1, 2, 3].map(x, x * 2) == [2, 4, 6]",
        "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6]",
        "{'a': 1, 'b': 2}.all(k, k in ['a', 'b'])",
        "{'a': 1, 'b': 2}.map(k, k) == ['a', 'b']",
        "object.spec.containers.all(c, c.image.matches('^[a-z]:[0-9]+$'))",
        "[[1], [2]].all(l, l.all(x, x > 0))",
        "cel.bind(x, 3, x * x) == 9",
        "[3, 4].all(i, v, v == i + 3) && {'a': 1}.exists(k, v, k == 'a' && v == 1)",
        "[1, 2].transformList(i, v, i + v) == [1, 3]",
        "{'a': 1, 'b': 2}.transformMap(k, v, v > 1, v * 10) == {'b': 20}",
        "{'a': 'x'}.transformMapEntry(k, v, {v: k}) == {'x': 'a'}",
        "[3, 1, 2].sortBy(x, -x) == [3, 2, 1]",
        // An inner variable hides an outer one, also where its name is a variable's.
        "[1].all(object, object == 1)",
        "[[1]].all(x, x.all(x, x == 1))",
    ]);
}

#[test]
fn optionals() {
    holds(&[
        "object.?spec.?missing.orValue(5) == 5",
        "object.?spec.?replicas.orValue(5) == 3",
        "object.?missing.deep.hasValue() == false",
        "object.spec[?'replicas'].value() == 3 && !object.spec.ports[?9].hasValue()",
        "optional.of(1).or(optional.none()).value() == 1",
        "optional.none().or(optional.of(2)).value() == 2",
        "optional.ofNonZeroValue('').hasValue() == false",
        "object.?spec.replicas.optMap(r, r + 1).orValue(0) == 4",
        "optional.of(1).optFlatMap(x, optional.of(x + 1)) == optional.of(2)",
        "[?optional.of(1), ?optional.none()] == [1]",
        "{?'a': optional.none(), 'b': 1} == {'b': 1}",
        "has(object.?spec.replicas) && !has(object.?missing.x)",
    ]);
    fails(&[("optional.none().value()", "optional.none() dereference")]);
}
