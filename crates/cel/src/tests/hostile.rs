//! Texts that mean harm end soon, with an error, on a small stack.

use std::thread;

use super::{env, run};
use crate::ErrorKind;

/// Runs on less than half of the stack that a worker has.
fn small(test: impl FnOnce() + Send + 'static) {
    thread::Builder::new().stack_size(768 << 10).spawn(test).expect("a thread").join().expect("no panic");
}

#[test]
fn deep_nesting_is_refused() {
    small(|| {
        for expression in [
            format!("{}1{}", "(".repeat(5000), ")".repeat(5000)),
            format!("{}1{}", "[".repeat(5000), "]".repeat(5000)),
            "(".repeat(50_000),
            "!".repeat(50_000),
            format!("{}true", "!-".repeat(5000)),
            format!("object{}", ".a".repeat(5000)),
            format!("1{}", " + 1".repeat(5000)),
            format!("object{}", "[0]".repeat(5000)),
            format!("{}true", "true ? true : ".repeat(5000)),
            format!("{}1{}", "{1: ".repeat(5000), "}".repeat(5000)),
            format!("{}[1]{}", "[".repeat(3000), ".map(x, x)]".repeat(3000)),
            "a".repeat(100_001),
        ] {
            assert!(env().compile(&expression).is_err(), "{}", &expression[..20]);
        }
    });
}

#[test]
fn what_is_just_within_the_limits_runs() {
    small(|| {
        for expression in [
            format!("{}1{} == 1", "(".repeat(200), ")".repeat(200)),
            format!("1{} == 201", " + 1".repeat(200)),
            format!("true{}", " && true".repeat(10_000)),
            format!("{}true", "!".repeat(200)),
            format!("object == {}1{} || true", "[".repeat(200), "]".repeat(200)),
            format!("{}true{}", "[1].all(x, ".repeat(200), ")".repeat(200)),
            format!("{}true", "true ? true : ".repeat(200)),
        ] {
            assert!(matches!(run(&expression), Ok(crate::Value::Bool(true))), "{}", &expression[..20]);
        }
    });
}

#[test]
fn runs_are_bounded_by_their_cost() {
    for expression in [
        "lists.range(1000).all(a, lists.range(1000).all(b, lists.range(1000).all(c, true)))",
        "lists.range(9000000000).size() > 0",
        "lists.range(20).map(x, lists.range(20)).map(x, x.map(y, 'aaaaaaaaaa'.replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaa').replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaaaa').replace('', 'aaaaaaaaaaaaaaaaaaaaaaaa'))).size() > 0",
        "lists.range(1000).map(x, s + s + s).join().split('').map(x, lists.range(1000)).flatten().sort().size() > 0",
        "lists.range(100000).exists(x, s.matches('(a+)+' + s))",
        "lists.range(10000).distinct().size() > 0",
    ] {
        let error = run(expression).expect_err(expression);
        assert_eq!(error.kind, ErrorKind::Cost, "{expression}: {error}");
        assert_eq!(error.message, "operation cancelled: actual cost limit exceeded");
    }
    // No part of a logical expression saves a run that is over.
    assert!(run("lists.range(9000000000).size() > 0 || true").is_err());
}

#[test]
fn patterns_cannot_explode() {
    assert!(env().compile("s.matches('((((a{1000}){1000}){1000}){1000})')").is_err());
    assert!(run("s.matches('((((a{1000}){1000}){1000}){100})' + s)").is_err());
    assert!(run("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab'.matches('^(a+)+$') == false").is_ok());
}

/// What is shared counts wherever it is: each of these lists would be larger than anything, written out.
#[test]
fn security_what_is_shared_is_not_counted_to_its_end() {
    let huge = format!("dyn([1]{})", ".map(x, [x, x])".repeat(60));
    for expression in [
        format!("[{huge}].all(v, v == v)"),
        format!("[{huge}].all(v, v in [v])"),
        format!("[{huge}].all(v, '%s'.format([v]) != '')"),
        format!("[{huge}].distinct().size() > 0"),
        format!("[{huge}].indexOf({huge}) == 0"),
        // What is compared is small, but not what it is compared with.
        "[dyn(lists.range(100000))].all(v, lists.range(300000).all(x, v != dyn([])))".to_owned(),
        "lists.range(1000).map(x, lists.range(500) + [x]).distinct().size() > 0".to_owned(),
    ] {
        assert_eq!(run(&expression).expect_err(&expression).kind, ErrorKind::Cost, "{expression}");
    }
    let found = run("[dyn(lists.range(100000))].all(v, !(v in dyn(lists.range(400000))))");
    assert!(matches!(found, Ok(crate::Value::Bool(true))), "{found:?}");
}

/// Each of these would hold hundreds of megabytes at a time.
#[test]
fn security_lists_cost_as_much_as_they_hold() {
    for expression in [
        "[lists.range(50000)].all(v, lists.range(40).map(x, v + v).size() == 40)",
        "[lists.range(50000)].all(v, lists.range(80).map(x, v.slice(0, 50000)).size() == 80)",
    ] {
        assert_eq!(run(expression).expect_err(expression).kind, ErrorKind::Cost, "{expression}");
    }
    let doubled = format!("{}lists.range(10){}.size() > 0", "[".repeat(20), "].map(v, v + v)[0]".repeat(20));
    assert_eq!(run(&doubled).expect_err(&doubled).kind, ErrorKind::Cost, "{doubled}");
    let small = "[lists.range(1000)].all(v, lists.range(40).map(x, v + v).size() == 40)";
    assert!(matches!(run(small), Ok(crate::Value::Bool(true))), "{:?}", run(small));
}

/// Upstream's limit lets them pass.
#[test]
fn long_lists_of_texts_have_distinct_ones() {
    let expression = format!("lists.range(600).map(x, '{}' + string(x)).distinct().size() == 600", "a".repeat(60));
    assert!(matches!(run(&expression), Ok(crate::Value::Bool(true))), "{:?}", run(&expression));
}

#[test]
fn security_offsets_of_time_may_be_at_their_ends() {
    for zone in ["2147483647:00", "-2147483647:00", "00:2147483647", "00:-2147483648", "596523:59", "99:00"] {
        let expression = format!("timestamp('2026-01-01T00:00:00Z').getHours('{zone}') == 0");
        assert_eq!(run(&expression).expect_err(zone).message, format!("unknown time zone {zone}"));
    }
}

/// Each of these is short, and takes milliseconds to be made into a program, or to be found too large for one.
#[test]
fn security_patterns_cost_what_making_them_takes() {
    for expression in [
        "lists.range(1000).exists(x, s.matches('.{1000}' + s))",
        "lists.range(1000).exists(x, s.find('[^a]{1000}' + s) != '')",
        "lists.range(1000).all(x, s.matches('.{5000}' + s) || true)",
    ] {
        assert_eq!(run(expression).expect_err(expression).kind, ErrorKind::Cost, "{expression}");
    }
    for expression in [
        "lists.range(300).all(x, s.matches('^[a-z]+$' + s) == false)",
        "lists.range(100).all(x, s.matches('^' + s + '\\\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?$') == false)",
        "lists.range(1000).all(x, s.matches('(' + s) || true)",
    ] {
        assert!(matches!(run(expression), Ok(crate::Value::Bool(true))), "{expression}: {:?}", run(expression));
    }
}
