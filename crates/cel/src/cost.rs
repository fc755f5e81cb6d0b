//! What an expression may cost at most, said before it is ever run (`checker.Cost` of cel-go, with what Kubernetes adds
//! for its own functions).
//!
//! Sizes are the heart of it: of constants they are known, of variables whoever declares them knows a bound, and each
//! function says how large its result can be. What nobody knows is as large as can be. A macro costs what the loop that
//! upstream makes of it costs; the numbers below are those of its parts.

use std::sync::Arc;

use crate::ast::{Call, Expr, Fold, FoldKind, How, Kind};
use crate::types::Type;
use crate::value::Value;

/// Bounds of what variables hold.
pub trait Sizes: Sync {
    /// How many letters, bytes, elements or entries there are at most in what lies at a path below the variable: names of
    /// fields, `@items`, `@keys` and `@values`. None if nothing is known to lie there.
    fn largest(&self, path: &[Arc<str>]) -> Option<u64>;
}

/// Naming a variable or selecting a field.
const STEP: u64 = 1;
const MAKE_LIST: u64 = 10;
const MAKE_MAP: u64 = 30;
const MAKE_OBJECT: u64 = 40;
/// Per letter that is looked at.
const LETTER: f64 = 0.1;
/// Per letter of a regular expression.
const PATTERN_LETTER: f64 = 0.25;
/// A question to the authorizer: two of them fill an expression's budget.
const AUTHORIZATION: u64 = 350_000;

#[derive(Clone, Copy, Debug)]
struct Size {
    min: u64,
    max: u64,
}

impl Size {
    const UNKNOWN: Size = Size { min: 0, max: u64::MAX };
    /// Of no element, to be joined with those of some.
    const NONE: Size = Size { min: u64::MAX, max: 0 };

    const fn of(exactly: u64) -> Self {
        Self { min: exactly, max: exactly }
    }

    fn plus(self, other: Size) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    fn times(self, other: Size) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    fn or(self, other: Size) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    /// The cost of reading it.
    fn read(self, per_letter: f64) -> u64 {
        scaled(self.max, per_letter)
    }
}

/// Rounded up, and no larger than what can be written down.
fn scaled(number: u64, factor: f64) -> u64 {
    // From two to the power of 64 on, the conversion itself stays at the largest number.
    (number as f64 * factor).ceil() as u64
}

/// The elements of a list or map.
#[derive(Clone, Copy, Debug)]
struct Entries {
    is_list: bool,
    key: Size,
    value: Size,
}

impl Entries {
    fn or(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (one, other) = (one?, other?);
        Some(Self { is_list: one.is_list, key: one.key.or(other.key), value: one.value.or(other.value) })
    }
}

/// What is known of an expression.
#[derive(Clone, Debug)]
struct Node {
    cost: u64,
    of: Type,
    /// Where its value lies below a variable, the variable's name first; empty if it was made here.
    path: Vec<Arc<str>>,
    size: Option<Size>,
    entries: Option<Entries>,
}

impl Node {
    fn size(&self) -> Size {
        self.size.unwrap_or(Size::UNKNOWN)
    }

    fn below(&self, name: &str) -> Vec<Arc<str>> {
        let mut path = self.path.clone();
        path.push(name.into());
        path
    }
}

struct Local {
    name: Arc<str>,
    path: Vec<Arc<str>>,
    size: Option<Size>,
    entries: Option<Entries>,
}

/// The highest cost of a checked expression. `types` are those that the checker found, by the numbers of expressions.
pub(crate) fn highest(expression: &Expr, types: &[Type], sizes: &dyn Sizes) -> u64 {
    Coster { types, sizes, locals: Vec::new() }.visit(expression).cost
}

struct Coster<'a> {
    types: &'a [Type],
    sizes: &'a dyn Sizes,
    locals: Vec<Local>,
}

impl Coster<'_> {
    fn type_of(&self, expression: &Expr) -> Type {
        self.types.get(expression.id as usize).cloned().unwrap_or(Type::Dyn)
    }

    fn bound(&self, path: &[Arc<str>]) -> Option<Size> {
        // Wherever it begins: there is but one root.
        let (_, below) = path.split_first()?;
        self.sizes.largest(below).map(|max| Size { min: 0, max })
    }

    /// What is known of a value by where it lies, or by its type.
    fn found(&self, cost: u64, of: Type, path: Vec<Arc<str>>) -> Node {
        let size = self.bound(&path).or_else(|| is_scalar(&of).then_some(Size::of(1)));
        Node { cost, of, path, size, entries: None }
    }

    fn visit(&mut self, expression: &Expr) -> Node {
        let of = self.type_of(expression);
        match &expression.kind {
            Kind::Constant(Value::Type(name)) => self.found(STEP, of, vec![name.clone()]),
            Kind::Constant(value) => Node { cost: 0, of, path: Vec::new(), size: of_constant(value), entries: None },
            Kind::Ident(name) => match self.locals.iter().rev().find(|local| local.name == *name) {
                Some(local) => {
                    let (size, entries) = (local.size, local.entries);
                    let mut node = self.found(STEP, of, local.path.clone());
                    node.size = node.size.or(size);
                    node.entries = entries;
                    node
                }
                None => self.found(STEP, of, vec![name.clone()]),
            },
            Kind::Select(select) => {
                let operand = self.visit(&select.operand);
                match select.how {
                    How::Has => self.found(operand.cost, of, Vec::new()),
                    How::Optional => self.found(operand.cost.saturating_add(1), of, Vec::new()),
                    How::Plain => {
                        let is_read = matches!(operand.of, Type::Map(..) | Type::Struct(_) | Type::Param(_));
                        let path = operand.below(&select.field);
                        self.found(operand.cost.saturating_add(if is_read { STEP } else { 0 }), of, path)
                    }
                }
            }
            Kind::Call(call) => self.call(call, of),
            Kind::List(items) => {
                let nodes: Vec<Node> = items.iter().map(|(item, _)| self.visit(item)).collect();
                let size = Some(Size::of(nodes.len() as u64));
                let entries = Some(Entries { is_list: true, key: Size::of(1), value: joined(&nodes) });
                Node { cost: total(&nodes).saturating_add(MAKE_LIST), of, path: Vec::new(), size, entries }
            }
            Kind::Map(entries) => {
                let keys: Vec<Node> = entries.iter().map(|(key, ..)| self.visit(key)).collect();
                let values: Vec<Node> = entries.iter().map(|(_, value, _)| self.visit(value)).collect();
                let cost = total(&keys).saturating_add(total(&values)).saturating_add(MAKE_MAP);
                let size = Some(Size::of(keys.len() as u64));
                let entries = Some(Entries { is_list: false, key: joined(&keys), value: joined(&values) });
                Node { cost, of, path: Vec::new(), size, entries }
            }
            Kind::Struct(_, fields) => {
                let nodes: Vec<Node> = fields.iter().map(|(_, value, _)| self.visit(value)).collect();
                self.found(total(&nodes).saturating_add(MAKE_OBJECT), of, Vec::new())
            }
            Kind::And(parts) | Kind::Or(parts) => {
                let nodes: Vec<Node> = parts.iter().map(|part| self.visit(part)).collect();
                self.found(total(&nodes), of, Vec::new())
            }
            Kind::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                let (condition, yes, no) = (self.visit(condition), self.visit(yes), self.visit(no));
                let cost = condition.cost.saturating_add(yes.cost.max(no.cost));
                let (size, entries) = (Some(yes.size().or(no.size())), Entries::or(yes.entries, no.entries));
                Node { cost, of, path: Vec::new(), size, entries }
            }
            Kind::Fold(fold) => self.fold(fold, of),
            Kind::Bind(name, parts) => {
                let [value, body] = &**parts;
                let value = self.visit(value);
                let mut body = self.with(name, value.path, value.size, value.entries, |coster| coster.visit(body));
                body.cost = body.cost.saturating_add(value.cost).saturating_add(MAKE_LIST);
                body.path = Vec::new();
                body
            }
        }
    }

    /// With a variable of its own.
    fn with<R>(
        &mut self,
        name: &Arc<str>,
        path: Vec<Arc<str>>,
        size: Option<Size>,
        entries: Option<Entries>,
        run: impl FnOnce(&mut Self) -> R,
    ) -> R {
        self.locals.push(Local { name: name.clone(), path, size, entries });
        let result = run(self);
        self.locals.pop();
        result
    }

    fn fold(&mut self, fold: &Fold, of: Type) -> Node {
        let range = self.visit(&fold.range);
        if matches!(fold.kind, FoldKind::OptMap | FoldKind::OptFlatMap) {
            return self.optional_fold(fold, &range, of);
        }
        let is_list = range.entries.map_or(matches!(range.of, Type::List(_)), |entries| entries.is_list);
        let (key, value) = if is_list { ("@indices", "@items") } else { ("@keys", "@values") };
        let sizes = range.entries.map(|entries| (entries.key, entries.value));
        let (key_size, value_size) = (sizes.map(|(key, _)| key), sizes.map(|(_, value)| value));
        let locals = self.locals.len();
        let mut declare = |name: &Arc<str>, path: &str, size: Option<Size>| {
            self.locals.push(Local { name: name.clone(), path: range.below(path), size, entries: None });
        };
        match &fold.second {
            Some(second) => {
                declare(&fold.variable, key, key_size);
                declare(second, value, value_size);
            }
            None if is_list => declare(&fold.variable, value, value_size),
            None => declare(&fold.variable, key, key_size),
        }
        let filter = fold.filter.as_ref().map(|filter| self.visit(filter).cost);
        let body = self.visit(&fold.body);
        let element = self.locals.last().and_then(|local| self.bound(&local.path).or(local.size));
        self.locals.truncate(locals);

        let count = range.size();
        // What it takes to begin, each round, and in the end; the accumulator is a variable like others.
        let (begin, round, end) = match fold.kind {
            FoldKind::All => (0, body.cost.saturating_add(3), 1),
            FoldKind::Exists => (0, body.cost.saturating_add(4), 1),
            FoldKind::ExistsOne => (0, body.cost.saturating_add(2), 2),
            FoldKind::Filter => (MAKE_LIST, body.cost.saturating_add(MAKE_LIST + 3), 1),
            FoldKind::Map => (MAKE_LIST, body.cost.saturating_add(MAKE_LIST + 2), 1),
            FoldKind::TransformMap => (MAKE_MAP, body.cost.saturating_add(3), 1),
            FoldKind::TransformMapEntry => (MAKE_MAP, body.cost.saturating_add(2), 1),
            // Bound to a variable, mapped to its keys, and sorted by them.
            FoldKind::SortBy => (2 * MAKE_LIST + 3, body.cost.saturating_add(MAKE_LIST + 2), 1),
            FoldKind::OptMap | FoldKind::OptFlatMap => (0, 0, 0),
        };
        let round = round.saturating_add(filter.unwrap_or(0));
        let cost = range.cost.saturating_add(begin).saturating_add(count.max.saturating_mul(round)).saturating_add(end);
        let made = |size: Option<Size>| {
            let value = Size::of(0).or(size.unwrap_or(Size::UNKNOWN));
            Some(Entries { is_list: true, key: Size::of(1), value })
        };
        let (size, entries) = match fold.kind {
            FoldKind::All | FoldKind::Exists | FoldKind::ExistsOne => (Size::of(1), None),
            FoldKind::Map => (count, made(body.size)),
            FoldKind::Filter | FoldKind::SortBy => (count, made(element)),
            _ => (count, None),
        };
        Node { cost, of, path: Vec::new(), size: Some(size), entries }
    }

    /// `has ? make(value) : none`, where what may have a value is looked at twice.
    fn optional_fold(&mut self, fold: &Fold, range: &Node, of: Type) -> Node {
        let inner = match &range.of {
            Type::Optional(inner) if is_scalar(inner) => Some(Size::of(1)),
            _ => None,
        };
        let body = self.with(&fold.variable, Vec::new(), inner, None, |coster| coster.visit(&fold.body));
        let make = if fold.kind == FoldKind::OptMap { 1 } else { 0 };
        let value = range.cost.saturating_add(1);
        let bound = value.saturating_add(body.cost).saturating_add(MAKE_LIST + make);
        self.found(value.saturating_add(bound), of, Vec::new())
    }

    fn call(&mut self, call: &Call, of: Type) -> Node {
        let nodes: Vec<Node> = call.arguments.iter().map(|argument| self.visit(argument)).collect();
        let before = total(&nodes);
        if let ("dyn", [inner]) = (&*call.function, &*nodes) {
            let (size, entries) = (inner.size, inner.entries);
            return Node { cost: before.saturating_add(1), of, path: Vec::new(), size, entries };
        }
        let mut path = Vec::new();
        let mut entries = None;
        if let ("_[_]", [range, _]) = (&*call.function, &*nodes) {
            path = range.below(if matches!(range.of, Type::List(_)) { "@items" } else { "@values" });
        }
        if let ("_+_", [one, other]) = (&*call.function, &*nodes) {
            entries = Entries::or(one.entries, other.entries);
        }
        let (target, arguments) = match nodes.split_first() {
            Some((target, rest)) if call.is_member => (Some(target), rest),
            _ => (None, &*nodes),
        };
        let (cost, size) = self.function(&call.function, target, arguments);
        let mut node = self.found(before.saturating_add(cost), of, path);
        node.entries = entries;
        if let ("_[_]", [range, _]) = (&*call.function, &*nodes)
            && let Some(inner) = range.entries
        {
            node.size = Some(inner.value);
        }
        node.size = size.or(node.size);
        node
    }

    /// The cost of a function beyond that of its arguments, and how large its result is where it says so.
    fn function(&self, name: &str, target: Option<&Node>, arguments: &[Node]) -> (u64, Option<Size>) {
        let read = |node: &Node| node.size().read(LETTER);
        match (name, target, arguments) {
            ("check", Some(_), _) => (AUTHORIZATION, None),
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(target), _) => match &target.of {
                Type::List(element) => {
                    let mut each = 1u64;
                    if matches!(**element, Type::String | Type::Bytes) {
                        let known = (!target.path.is_empty()).then(|| self.bound(&target.below("@items"))).flatten();
                        each = each.saturating_add(known.unwrap_or(Size::UNKNOWN).read(LETTER));
                    }
                    (target.size().max.saturating_mul(each), None)
                }
                _ => (read(target), None),
            },
            ("url", None, [text]) => (read(text), None),
            ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(target), _) => {
                (read(target), Some(target.size()))
            }
            ("replace", Some(target), [from, to, ..]) => {
                (target.size().read(2.0 * LETTER), Some(replaced(target.size(), from.size(), to.size())))
            }
            ("split", Some(target), _) => {
                (target.size().read(2.0 * LETTER), Some(Size { min: 0, max: target.size().max }))
            }
            ("join", Some(target), separator) => {
                let count = target.size();
                let mut size = Size::of(0);
                if matches!(target.of, Type::List(_)) {
                    let known = (!target.path.is_empty()).then(|| self.bound(&target.below("@items"))).flatten();
                    size = count.times(known.unwrap_or(Size::UNKNOWN));
                }
                if let [separator, ..] = separator {
                    let gaps = Size { min: count.min.saturating_sub(1), max: count.max.saturating_sub(1) };
                    size = size.plus(separator.size().times(gaps));
                }
                (size.read(LETTER), Some(size))
            }
            ("matches" | "find" | "findAll", Some(target), [pattern, ..]) => {
                let text = target.size().plus(Size::of(1)).read(LETTER);
                let size = (name != "matches").then_some(Size { min: 0, max: target.size().max });
                (text.saturating_mul(pattern.size().read(PATTERN_LETTER)), size)
            }
            ("containsIP" | "containsCIDR", Some(_), [other, ..]) => {
                // Addresses have four or sixteen bytes; a text has to be read first.
                let compared = if name == "containsIP" { 4 } else { 4 + 2 + 1 };
                let parsed = if matches!(other.of, Type::String) { read(other) } else { 0 };
                (parsed.saturating_add(compared), None)
            }
            ("contains", Some(target), [part]) => (read(target).saturating_mul(read(part)), None),
            ("startsWith" | "endsWith", Some(_), [part]) => (read(part), None),
            ("format", Some(target), _) => (read(target), None),
            ("validate", Some(_), [text]) => (read(text), None),
            ("sets.contains" | "sets.intersects" | "sets.equivalent", None, [one, other]) => {
                let factor = if name == "sets.equivalent" { 2 } else { 1 };
                let pairs = one.size().max.saturating_mul(other.size().max);
                (pairs.saturating_mul(factor).saturating_add(1), None)
            }
            ("slice" | "distinct" | "sort" | "reverse", Some(target), _) => {
                (1, Some(Size { min: 0, max: target.size().max }))
            }
            ("strings.quote", None, [text]) => {
                let size = text.size();
                let most = size.max.saturating_mul(2).saturating_add(2);
                (read(text), Some(Size { min: size.min.saturating_add(2), max: most }))
            }
            ("bytes", None, [text]) if matches!(text.of, Type::String) => {
                (read(text), Some(Size { min: text.size().min, max: text.size().max.saturating_mul(4) }))
            }
            ("string", None, [bytes]) if matches!(bytes.of, Type::Bytes) => {
                (read(bytes), Some(Size { min: bytes.size().min / 4, max: bytes.size().max }))
            }
            ("@in", None, [_, range]) => match &range.of {
                Type::Map(..) => (1, None),
                _ => (range.size().max, None),
            },
            ("_+_", None, [one, other]) => {
                let size = one.size().plus(other.size());
                match operands(one, other) {
                    Operands::Texts => (size.read(LETTER), Some(size)),
                    Operands::Lists => (1, Some(size)),
                    Operands::Unknown => (size.read(LETTER).max(1), Some(size)),
                    Operands::Others => (1, None),
                }
            }
            ("_==_" | "_!=_", None, [Node { of: Type::Opaque(_), .. }, Node { of: Type::Opaque(_), .. }]) => (1, None),
            ("_==_" | "_!=_", None, [one, other]) => (compared(one, other), None),
            ("_<_" | "_<=_" | "_>_" | "_>=_", None, [one, other]) => match operands(one, other) {
                Operands::Texts => (compared(one, other), None),
                Operands::Unknown => (compared(one, other).max(1), None),
                Operands::Lists | Operands::Others => (1, None),
            },
            _ => (1, None),
        }
    }
}

enum Operands {
    Texts,
    Lists,
    /// Any overload will do.
    Unknown,
    Others,
}

fn operands(one: &Node, other: &Node) -> Operands {
    let either = |is: fn(&Type) -> bool| is(&one.of) || is(&other.of);
    if either(|of| matches!(of, Type::String | Type::Bytes)) {
        Operands::Texts
    } else if either(|of| matches!(of, Type::List(_))) {
        Operands::Lists
    } else if either(|of| !matches!(of, Type::Dyn | Type::Param(_) | Type::Error)) {
        Operands::Others
    } else {
        Operands::Unknown
    }
}

/// The shorter one decides.
fn compared(one: &Node, other: &Node) -> u64 {
    scaled(one.size().max.min(other.size().max), LETTER)
}

fn total(nodes: &[Node]) -> u64 {
    nodes.iter().fold(0, |sum, node| sum.saturating_add(node.cost))
}

/// The size of any of them.
fn joined(nodes: &[Node]) -> Size {
    match nodes {
        [] => Size::of(0),
        nodes => nodes.iter().fold(Size::NONE, |size, node| size.or(node.size())),
    }
}

/// How long a text can get, and how short, when parts of it are replaced.
fn replaced(text: Size, from: Size, to: Size) -> Size {
    let (count, kept) = match (from.min, to.max) {
        // Nothing is replaced around every letter.
        (0, _) => (text.max.saturating_add(1), text.max),
        (from, to) if to <= from => (0, text.max),
        (from, _) => (text.max.div_ceil(from), 0),
    };
    let max = count.saturating_mul(to.max).saturating_add(kept);
    let (count, kept) = match (from.max, to.min) {
        (0, _) => (text.min.saturating_add(1), text.min),
        (from, to) if from <= to => (0, text.min),
        (from, _) => (text.min.div_ceil(from), 0),
    };
    Size { min: count.saturating_mul(to.min).saturating_add(kept), max }
}

fn is_scalar(of: &Type) -> bool {
    match of {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        Type::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}

fn of_constant(value: &Value) -> Option<Size> {
    Some(Size::of(match value {
        Value::String(text) => text.chars().count() as u64,
        Value::Bytes(bytes) => bytes.len() as u64,
        Value::Bool(_) | Value::Double(_) | Value::Int(_) | Value::Uint(_) | Value::Null => 1,
        _ => return None,
    }))
}
