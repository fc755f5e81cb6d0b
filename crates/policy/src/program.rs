//! What is in the kernel, and the transactions that make it what is planned. But for [`isolated`] pure: plans in, text out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::io;
use std::net::IpAddr;

use api::sort::{CompactCollect as _, CompactSort as _};

use crate::plan::{CLOSED, Element, Plan, SUBJECTS, Touched, Was, next_of, self_sets};

const TABLE: &str = "inet cox-policy";
/// Stands in for it while it is replaced.
const MEANWHILE: &str = "inet cox-policy-meanwhile";
/// Elements per line, so that an error names few.
const BATCH: usize = 500;

/// The kernel finds a set by looking at all of them, one after the other. With more sets than this it would spend most of its time on that.
pub(crate) const MANY_SETS: usize = 1000;
/// A set of so few elements can be written into the rule that looks at it.
const FEW: usize = 4;

/// Sets that the kernel does not have, because their elements are in the only rule that looks at them; each with the chain of that rule.
pub(crate) type Inlined = BTreeMap<String, String>;

/// The addresses that tables in the kernel isolate; none without a table. Blocking.
pub(crate) fn isolated() -> io::Result<BTreeSet<IpAddr>> {
    Ok(isolated_by(TABLE)?.into_iter().chain(isolated_by(MEANWHILE)?).collect())
}

/// Whether the table isolates anyone, rather than one that stood in for it when a process was killed. Blocking.
pub(crate) fn is_at_work() -> io::Result<bool> {
    Ok(!isolated_by(TABLE)?.is_empty())
}

/// Whether the table is in the kernel, whatever it holds. Whoever reloads the rules of a machine from a file removes all others. Blocking.
pub(crate) fn is_there() -> io::Result<bool> {
    let name = TABLE.rsplit(' ').next().unwrap_or(TABLE);
    Ok(netlink::nft::tables()?.iter().any(|table| table.name == name))
}

fn isolated_by(table: &str) -> io::Result<Vec<IpAddr>> {
    let mut addresses = Vec::new();
    for (map, _) in SUBJECTS {
        match netlink::nft::elements(table, map) {
            Ok(elements) => addresses.extend(elements.iter().filter_map(|element| element.key.parse::<IpAddr>().ok())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(addresses)
}

/// The transactions that put a plan in the place of whatever is there.
pub(crate) fn anew(plan: &Plan, inlined: &Inlined, is_at_work: bool) -> Vec<String> {
    in_place(afresh(plan, inlined), is_at_work && !plan.is_empty())
}

/// Puts a new table in the place of another. The hooks of the old one go and those of the new one come one after the other, and a
/// packet on its way could meet neither. Where pods are isolated, another table judges meanwhile as the new one will: one that is
/// made for it, or that a process has left which was killed here.
fn in_place(new: Vec<String>, is_at_work: bool) -> Vec<String> {
    let of_other = |text: &String| text.replace(TABLE, MEANWHILE);
    let meanwhile: Vec<String> = if is_at_work { new.iter().map(of_other).collect() } else { Vec::new() };
    let over = format!("add table {MEANWHILE}\ndelete table {MEANWHILE}\n");
    meanwhile.into_iter().chain(new).chain([over]).collect()
}

/// Takes whatever table is there away and builds what is planned: all that rules look at, then the rules that look.
pub(crate) fn afresh(plan: &Plan, inlined: &Inlined) -> Vec<String> {
    let mut text = format!("add table {TABLE}\ndelete table {TABLE}\n");
    if plan.is_empty() {
        return vec![text];
    }
    declare(&mut text);
    let [new, rules, rest] = write(&Touched::all(plan), plan, inlined);
    vec![text + &new, rules + &rest]
}

/// The sets that [`afresh`] need not make, if there are more than `many`: those with a few elements that one rule looks at.
pub(crate) fn inlined(plan: &Plan, many: usize) -> Inlined {
    if plan.sets.len() <= many {
        return Inlined::new();
    }
    let is_small = |name: &str| {
        let elements = plan.sets.get(name).map(|set| &set.elements);
        let is_plain = |element: &Element| matches!(element, Element::Address(_) | Element::Port(..));
        elements.is_some_and(|all| !all.is_empty() && all.len() <= FEW && all.iter().all(is_plain))
    };
    let alone = uses(plan).into_iter().filter(|(name, (count, _))| *count == 1 && is_small(name));
    alone.map(|(name, (_, chain))| (name.to_owned(), chain.to_owned())).collect()
}

/// How many rules look at each set, and the chain of one of them.
fn uses(plan: &Plan) -> HashMap<&str, (usize, &str)> {
    let mut uses: HashMap<&str, (usize, &str)> = HashMap::new();
    let all = plan.chains.iter().flat_map(|(chain, rules)| rules.iter().map(move |rule| (chain.as_str(), rule)));
    for (chain, rule) in all {
        for set in sets_of(rule) {
            uses.entry(set).or_insert((0, chain)).0 += 1;
        }
    }
    uses
}

/// The sets that a rule looks at.
fn sets_of(rule: &str) -> impl Iterator<Item = &str> {
    rule.split(" @").skip(1).filter_map(|rest| rest.split(' ').next())
}

/// A rule without the sets that the kernel does not have: one for each of their elements.
fn without_sets(rule: &str, plan: &Plan, inlined: &Inlined) -> Vec<String> {
    let Some(name) = sets_of(rule).find(|set| inlined.contains_key(*set)) else { return vec![rule.to_owned()] };
    let Some((before, after)) = rule.split_once(&format!("@{name} ")) else { return vec![rule.to_owned()] };
    let elements = plan.sets.get(name).into_iter().flat_map(|set| &set.elements);
    let one = |element: &Element| match element {
        Element::Port(address, protocol, port) => {
            let side = before.strip_suffix(". meta l4proto . th dport ").unwrap_or(before);
            format!("{side}{address} {} dport {port} {after}", protocol.name())
        }
        other => format!("{before}{other} {after}"),
    };
    elements.map(one).collect()
}

/// The way to a plan from the one that it was, in transactions; none where nothing differs.
///
/// What is new comes before what leads to it. The kernel keeps to the rules that a packet's look began with, but looks into maps as
/// they are now: led to a chain of the same transaction, a packet would find it empty, and pass. And it fills sets with ranges
/// last of all: a rule of the same transaction would find nothing in them. `inlined` is what holds before it and, if
/// it succeeds, after it.
pub(crate) fn change(touched: &Touched, now: &Plan, inlined: &mut Inlined) -> Vec<String> {
    let transactions = match (was_empty(touched, now), now.is_empty()) {
        (true, true) => Vec::new(),
        (false, false) => {
            let more = with_sets(touched, now, inlined);
            let [new, rules, rest] = write(more.as_ref().unwrap_or(touched), now, inlined);
            if moves_to_changed_chain(touched, now) { vec![new, rules, rest] } else { vec![new, rules + &rest] }
        }
        _ => {
            *inlined = self::inlined(now, MANY_SETS);
            afresh(now, inlined)
        }
    };
    transactions.into_iter().filter(|text| !text.is_empty()).collect()
}

/// Whether a pod that is judged by a chain is to be judged by another that changes: the map would lead to its rules of before.
fn moves_to_changed_chain(touched: &Touched, now: &Plan) -> bool {
    touched.subjects.iter().any(|((map, address), was)| {
        let verdict = now.subjects.get(map).and_then(|entries| entries.get(address));
        let chain = verdict.map(|verdict| verdict.strip_prefix("jump ").unwrap_or(verdict));
        let changes = |chain: &str| {
            [chain.to_owned(), next_of(chain)].iter().any(|chain| matches!(touched.chains.get(chain), Some(Some(_))))
        };
        was.is_some() && verdict != was.as_ref() && chain.is_some_and(changes)
    })
}

/// What is touched, if that is more than the plan says: a set that was in a rule, and is touched or looked at by another rule now, is
/// made, and all rules of its chain are written again.
fn with_sets(touched: &Touched, now: &Plan, inlined: &mut Inlined) -> Option<Touched> {
    if inlined.is_empty() {
        return None;
    }
    let rules = touched.chains.keys().filter_map(|chain| now.chains.get(chain)).flatten();
    let looked_at = rules.flat_map(|rule| sets_of(rule));
    let meant = touched.sets.keys().map(String::as_str).chain(looked_at).filter_map(|set| inlined.get(set));
    let chains: BTreeSet<String> = meant.chain(touched.chains.keys()).cloned().compact_collect();
    let made: BTreeSet<String> =
        inlined.iter().filter(|(_, chain)| chains.contains(*chain)).map(|(set, _)| set.clone()).collect();
    if made.is_empty() {
        return None;
    }
    let mut more = touched.clone();
    for set in made {
        let chain = inlined.remove(&set);
        match now.sets.contains_key(&set) {
            true => drop(more.sets.insert(set, Was::Absent)),
            false => drop(more.sets.remove(&set)),
        }
        if let Some(chain) = chain {
            // Other rules than it has, whichever those are.
            more.chains.insert(chain, Some(vec![String::new()]));
        }
    }
    Some(more)
}

/// What is left to do when a change was refused: whoever it concerns is closed until it is not.
/// First the chain that does it, for the reason that [`change`] has.
pub(crate) fn closing(touched: &Touched, now: &Plan, is_at_work: bool) -> Vec<String> {
    let is_touched = |rule: &String| sets_of(rule).any(|set| touched.sets.contains_key(set));
    let concerns = |verdict: &str| {
        let chain = verdict.strip_prefix("jump ").unwrap_or(verdict);
        [chain.to_owned(), next_of(chain)].iter().any(|chain| {
            touched.chains.contains_key(chain)
                || now.chains.get(chain).is_some_and(|rules| rules.iter().any(&is_touched))
        })
    };
    let mut text = String::new();
    let is_new = was_empty(touched, now);
    if is_new {
        text.push_str(&afresh(&Plan::default(), &Inlined::new()).concat());
        declare(&mut text);
        for (set, declaration) in self_sets() {
            line(&mut text, format_args!("add set {TABLE} {set} {declaration}"));
        }
        for rule in &now.forward {
            line(&mut text, format_args!("add rule {TABLE} forward {rule}"));
        }
    }
    line(&mut text, format_args!("add chain {TABLE} {CLOSED}"));
    line(&mut text, format_args!("flush chain {TABLE} {CLOSED}"));
    line(&mut text, format_args!("add rule {TABLE} {CLOSED} drop"));
    let mut rest = String::new();
    for (map, entries) in &now.subjects {
        let was = |address: &IpAddr| touched.subjects.get(&(*map, *address));
        let meant: Vec<IpAddr> = entries
            .iter()
            .filter(|(address, verdict)| is_new || was(address).is_some() || concerns(verdict))
            .map(|(address, _)| *address)
            .collect();
        // Not there before, and there since this was done the last time: added again as it is.
        let had = meant.iter().filter(|address| !is_new && was(address).is_none_or(Option::is_some));
        elements(&mut rest, "delete", map, had.map(IpAddr::to_string));
        elements(&mut rest, "add", map, meant.iter().map(|address| format!("{address} : jump {CLOSED}")));
    }
    match (rest.is_empty(), is_new) {
        (true, _) => Vec::new(),
        // After a restart all is new here, but not in the kernel.
        (false, true) => in_place(vec![text + &rest], is_at_work),
        (false, false) => vec![text, rest],
    }
}

fn was_empty(touched: &Touched, now: &Plan) -> bool {
    let count: usize = now.subjects.values().map(BTreeMap::len).sum();
    let (mut come, mut gone) = (0, 0);
    for ((map, address), was) in &touched.subjects {
        match (was, now.subjects.get(map).is_some_and(|entries| entries.contains_key(address))) {
            (None, true) => come += 1,
            (Some(_), false) => gone += 1,
            _ => {}
        }
    }
    count + gone == come
}

/// The table with what is always there.
fn declare(text: &mut String) {
    line(text, format_args!("add table {TABLE} {{ comment \"network policies\" ; }}"));
    for (map, addr) in SUBJECTS {
        line(text, format_args!("add map {TABLE} {map} {{ type {addr} : verdict ; }}"));
    }
    line(text, format_args!("add chain {TABLE} forward {{ type filter hook forward priority 0 ; }}"));
}

/// What is new; other rules for chains that were there; and the rest, where what is used no longer goes last.
fn write(touched: &Touched, now: &Plan, inlined: &Inlined) -> [String; 3] {
    let [mut new, mut changed, mut rest] = [String::new(), String::new(), String::new()];
    let mut sets: Vec<(&String, &Was)> = touched.sets.iter().filter(|(name, _)| !inlined.contains_key(*name)).collect();
    if sets.len() > MANY_SETS {
        // Those that most rules look at are found first.
        let uses = uses(now);
        sets.compact_sort_by_key(|(name, _)| Reverse(uses.get(name.as_str()).map_or(0, |(count, _)| *count)));
    }
    for (name, was) in sets {
        let Some(set) = now.sets.get(name) else { continue };
        let (gone, come): (Vec<&Element>, Vec<&Element>) = match was {
            Was::Absent => {
                line(&mut new, format_args!("add set {TABLE} {name} {}", set.declaration));
                elements(&mut new, "add", name, set.elements.iter().map(Element::to_string));
                continue;
            }
            Was::Whole(had) => {
                (had.elements.difference(&set.elements).collect(), set.elements.difference(&had.elements).collect())
            }
            Was::There(parts) => (
                parts.iter().filter(|(one, was)| **was && !set.elements.contains(*one)).map(|(one, _)| one).collect(),
                parts.iter().filter(|(one, was)| !**was && set.elements.contains(*one)).map(|(one, _)| one).collect(),
            ),
        };
        elements(&mut rest, "delete", name, gone.into_iter().map(Element::to_string));
        elements(&mut rest, "add", name, come.into_iter().map(Element::to_string));
    }
    for (name, was) in &touched.chains {
        if was.is_none() && now.chains.contains_key(name) {
            line(&mut new, format_args!("add chain {TABLE} {name}"));
        }
    }
    for (name, was) in &touched.chains {
        let Some(rules) = now.chains.get(name) else { continue };
        let text = match was {
            Some(was) if was == rules => continue,
            Some(_) => {
                line(&mut changed, format_args!("flush chain {TABLE} {name}"));
                &mut changed
            }
            None => &mut new,
        };
        for rule in rules.iter().flat_map(|rule| without_sets(rule, now, inlined)) {
            line(text, format_args!("add rule {TABLE} {name} {rule}"));
        }
    }
    let text = &mut rest;
    if touched.forward.as_ref().is_some_and(|was| *was != now.forward) {
        line(text, format_args!("flush chain {TABLE} forward"));
        for rule in &now.forward {
            line(text, format_args!("add rule {TABLE} forward {rule}"));
        }
    }
    for (map, entries) in &now.subjects {
        let of_map = || touched.subjects.range((*map, IpAddr::from([0; 4]))..).take_while(|((of, _), _)| of == map);
        let is_other = |address: &IpAddr, was: &Option<String>| entries.get(address) != was.as_ref();
        let gone = of_map().filter(|((_, address), was)| was.is_some() && is_other(address, was));
        elements(text, "delete", map, gone.map(|((_, address), _)| address.to_string()));
        let come = of_map().filter(|((_, address), was)| is_other(address, was));
        let come = come.filter_map(|((_, address), _)| Some(format!("{address} : {}", entries.get(address)?)));
        elements(text, "add", map, come);
    }
    let gone = || {
        let all = touched.chains.iter().filter(|(name, was)| was.is_some() && !now.chains.contains_key(*name));
        all.map(|(name, _)| name)
    };
    for name in gone() {
        line(text, format_args!("flush chain {TABLE} {name}"));
    }
    for name in gone() {
        line(text, format_args!("delete chain {TABLE} {name}"));
    }
    for (name, was) in &touched.sets {
        if !matches!(was, Was::Absent) && !now.sets.contains_key(name) {
            line(text, format_args!("delete set {TABLE} {name}"));
        }
    }
    [new, changed, rest]
}

fn elements(text: &mut String, verb: &str, set: &str, elements: impl Iterator<Item = String>) {
    let all: Vec<String> = elements.collect();
    for batch in all.chunks(BATCH) {
        line(text, format_args!("{verb} element {TABLE} {set} {{ {} }}", batch.join(", ")));
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Infallible: writing to a String.
    let _ = text.write_fmt(arguments);
    text.push('\n');
}
