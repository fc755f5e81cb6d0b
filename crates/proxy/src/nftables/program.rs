//! What is programmed, and the transaction that makes it what is wanted. Pure: text in, text out.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use super::Transaction;
use super::base::{FAMILIES, Family, TABLE, table};
use super::fragment::{CLIENTS, Fragment, Part, fragment};
use crate::error::Result;
use crate::services::ServicePort;
use crate::settings::Settings;

/// Elements per `add element` line, so that an error names few.
pub(super) const BATCH: usize = 500;

/// The state of the kernel as far as we know it.
#[derive(Default)]
pub(crate) struct Program {
    services: HashMap<String, Fragment>,
    families: [State; 2],
}

#[derive(Default)]
struct State {
    elements: HashMap<(&'static str, String), Slot>,
    chains: HashMap<String, Shared>,
    sets: HashMap<String, Shared>,
}

/// An element that several services may want; the first wish counts. Two services with one external address and port is a
/// mistake of the user's that must not break either's other addresses.
#[derive(Default)]
struct Slot {
    /// Values, each with how many services want it: thousands may want the same.
    wishes: Vec<(String, usize)>,
}

/// A chain or set and how many services use it.
#[derive(Default)]
struct Shared {
    users: usize,
    content: Vec<String>,
}

/// The value before the first change, and the value now.
type Change<T> = (Option<T>, Option<T>);

/// The changes of one family, gathered before they are written in the order the kernel needs.
#[derive(Default)]
struct Changes {
    elements: BTreeMap<(&'static str, String), Change<String>>,
    chains: BTreeMap<String, Change<Vec<String>>>,
    sets: BTreeMap<String, Change<String>>,
}

impl crate::backend::Backend for Program {
    type Fragment = Fragment;
    type Transaction = Transaction;

    fn fragment(ports: &[ServicePort], settings: &Settings) -> Fragment {
        fragment(ports, settings)
    }

    /// Clients stay with the endpoints that they have, as far as these are still there.
    async fn from_scratch(settings: &Settings, services: HashMap<String, Fragment>) -> Result<(Self, Transaction)> {
        let (program, mut transaction) = Self::fresh(settings, services);
        let clients: Vec<(Family, String)> = program.sets_of_clients().collect();
        transaction.text.push_str(&tokio::task::spawn_blocking(move || super::kept(&clients)).await?);
        Ok((program, transaction))
    }

    fn present(&self, service: &str) -> Option<&Fragment> {
        self.services.get(service)
    }

    fn len(&self) -> usize {
        self.services.len()
    }

    fn update(&mut self, services: Vec<(String, Option<Fragment>)>) -> Transaction {
        let mut changes: [Changes; 2] = Default::default();
        let empty = Fragment::default();
        for (key, new) in services {
            let old = self.services.remove(&key);
            for (i, changes) in changes.iter_mut().enumerate() {
                let old = &old.as_ref().unwrap_or(&empty).families[i];
                let new = &new.as_ref().unwrap_or(&empty).families[i];
                self.families[i].replace(old, new, changes);
            }
            if let Some(new) = new {
                self.services.insert(key, new);
            }
        }
        let mut transaction = Transaction::default();
        for (family, changes) in FAMILIES.iter().zip(changes) {
            changes.write(*family, &mut transaction.text);
        }
        transaction
    }

    async fn apply(transaction: &Transaction) -> Result<()> {
        super::apply(transaction).await
    }

    fn is_empty(transaction: &Transaction) -> bool {
        transaction.text.is_empty()
    }

    async fn is_there() -> bool {
        match tokio::task::spawn_blocking(netlink::nft::tables).await {
            Ok(Ok(tables)) => tables.iter().filter(|table| table.name == TABLE).count() == FAMILIES.len(),
            // Not being able to look is no answer.
            _ => true,
        }
    }
}

impl Program {
    /// Builds the table and everything in it from nothing.
    pub(super) fn fresh(settings: &Settings, services: HashMap<String, Fragment>) -> (Self, Transaction) {
        let mut text: String = FAMILIES.iter().map(|family| table(settings, *family)).collect();
        let mut program = Self::default();
        let all = services.into_iter().map(|(key, fragment)| (key, Some(fragment))).collect();
        text.push_str(&crate::backend::Backend::update(&mut program, all).text);
        (program, Transaction { text })
    }

    /// The sets that remember which clients an endpoint has.
    pub(super) fn sets_of_clients(&self) -> impl Iterator<Item = (Family, String)> + '_ {
        let all = FAMILIES.iter().zip(&self.families);
        let all = all.flat_map(|(family, state)| state.sets.keys().map(move |name| (*family, name.clone())));
        all.filter(|(_, name)| name.starts_with(CLIENTS))
    }
}

impl State {
    fn replace(&mut self, old: &Part, new: &Part, changes: &mut Changes) {
        for (key, value) in &old.elements {
            match new.elements.get(key) {
                Some(now) if now == value => {}
                Some(now) => self.change_element(key, changes, |slot| slot.exchange(value, now)),
                None => self.change_element(key, changes, |slot| slot.withdraw(value)),
            }
        }
        for (key, value) in &new.elements {
            if !old.elements.contains_key(key) {
                self.change_element(key, changes, |slot| slot.wish(value));
            }
        }
        for (name, declaration) in &new.sets {
            share(&mut self.sets, name, std::slice::from_ref(declaration), |before, now| {
                note(
                    &mut changes.sets,
                    name,
                    before.and_then(|b| b.first().cloned()),
                    now.and_then(|n| n.first().cloned()),
                );
            });
        }
        for (name, rules) in &new.chains {
            share(&mut self.chains, name, rules, |before, now| note(&mut changes.chains, name, before, now));
        }
        for name in old.chains.keys() {
            unshare(&mut self.chains, name, |before| note(&mut changes.chains, name, Some(before), None));
        }
        for name in old.sets.keys() {
            unshare(&mut self.sets, name, |before| note(&mut changes.sets, name, before.first().cloned(), None));
        }
    }

    fn change_element(&mut self, key: &(&'static str, String), changes: &mut Changes, change: impl FnOnce(&mut Slot)) {
        let slot = self.elements.entry(key.clone()).or_default();
        let before = slot.value();
        change(slot);
        let now = slot.value();
        if now.is_none() {
            self.elements.remove(key);
        }
        if before != now {
            note(&mut changes.elements, key, before, now);
        }
    }
}

impl Slot {
    fn value(&self) -> Option<String> {
        self.wishes.first().map(|(value, _)| value.clone())
    }

    fn wish(&mut self, value: &str) {
        match self.wishes.iter_mut().find(|(wished, _)| wished == value) {
            Some((_, count)) => *count += 1,
            None => self.wishes.push((value.to_owned(), 1)),
        }
    }

    /// A service that wanted `old` wants `new`. If nobody else wanted `old`, it keeps its place: a service that comes second to an address
    /// does not get it because the first one changed.
    fn exchange(&mut self, old: &str, new: &str) {
        let place = |value: &str| self.wishes.iter().position(|(wished, _)| wished == value);
        match (place(old), place(new)) {
            (Some(at), None) if self.wishes[at].1 == 1 => new.clone_into(&mut self.wishes[at].0),
            _ => {
                self.withdraw(old);
                self.wish(new);
            }
        }
    }

    fn withdraw(&mut self, value: &str) {
        if let Some(at) = self.wishes.iter().position(|(wished, _)| wished == value) {
            self.wishes[at].1 -= 1;
            if self.wishes[at].1 == 0 {
                self.wishes.remove(at);
            }
        }
    }
}

/// Remembers the state before the first change and after the last.
fn note<K: Ord + Clone, V: PartialEq>(
    map: &mut BTreeMap<K, (Option<V>, Option<V>)>,
    key: &K,
    before: Option<V>,
    now: Option<V>,
) {
    match map.get_mut(key) {
        Some(change) => change.1 = now,
        None => drop(map.insert(key.clone(), (before, now))),
    }
}

fn share(
    all: &mut HashMap<String, Shared>,
    name: &str,
    content: &[String],
    mut changed: impl FnMut(Option<Vec<String>>, Option<Vec<String>>),
) {
    match all.get_mut(name) {
        Some(shared) => {
            shared.users += 1;
            if shared.content != content {
                let before = std::mem::replace(&mut shared.content, content.to_vec());
                changed(Some(before), Some(content.to_vec()));
            }
        }
        None => {
            all.insert(name.to_owned(), Shared { users: 1, content: content.to_vec() });
            changed(None, Some(content.to_vec()));
        }
    }
}

fn unshare(all: &mut HashMap<String, Shared>, name: &str, changed: impl FnOnce(Vec<String>)) {
    if let Some(shared) = all.get_mut(name) {
        shared.users -= 1;
        if shared.users == 0 {
            let shared = all.remove(name).unwrap_or_default();
            changed(shared.content);
        }
    }
}

impl Changes {
    /// Declarations before their use, elements before the chains they lead to go.
    fn write(self, family: Family, text: &mut String) {
        let table = format!("{} {TABLE}", family.name);
        let mut line = |arguments: std::fmt::Arguments<'_>| {
            // Infallible: writing to a String.
            let _ = text.write_fmt(arguments);
            text.push('\n');
        };
        let sets: Vec<_> = self.sets.into_iter().filter(|(_, (before, now))| before != now).collect();
        let chains: Vec<_> = self.chains.into_iter().filter(|(_, (before, now))| before != now).collect();
        for (name, (before, now)) in &sets {
            if let (None, Some(declaration)) = (before, now) {
                line(format_args!("add set {table} {name} {declaration}"));
            }
        }
        for (name, (before, now)) in &chains {
            match (before, now) {
                (None, Some(_)) => line(format_args!("add chain {table} {name}")),
                (Some(_), Some(_)) => line(format_args!("flush chain {table} {name}")),
                _ => {}
            }
        }
        for (name, (_, now)) in &chains {
            for rule in now.iter().flatten() {
                line(format_args!("add rule {table} {name} {rule}"));
            }
        }
        let mut deleted: BTreeMap<&'static str, Vec<(String, Option<String>)>> = BTreeMap::new();
        let mut added: BTreeMap<&'static str, Vec<(String, Option<String>)>> = BTreeMap::new();
        for ((map, key), (before, now)) in self.elements {
            if before == now {
                continue;
            }
            if now.is_some() {
                added.entry(map).or_default().push((key.clone(), now));
            }
            if before.is_some() {
                deleted.entry(map).or_default().push((key, None));
            }
        }
        for (verb, changes) in [("delete", deleted), ("add", added)] {
            for (map, changes) in changes {
                for batch in changes.chunks(BATCH) {
                    let all: Vec<String> = batch.iter().map(|(key, value)| element(key, value.as_deref())).collect();
                    line(format_args!("{verb} element {table} {map} {{ {} }}", all.join(", ")));
                }
            }
        }
        let gone: Vec<&String> = chains.iter().filter(|(_, (_, now))| now.is_none()).map(|(name, _)| name).collect();
        for name in &gone {
            line(format_args!("flush chain {table} {name}"));
        }
        for name in &gone {
            line(format_args!("delete chain {table} {name}"));
        }
        for (name, (_, now)) in &sets {
            if now.is_none() {
                line(format_args!("delete set {table} {name}"));
            }
        }
    }
}

/// An element as `nft` writes it: a set's has no value.
fn element(key: &str, value: Option<&str>) -> String {
    match value.filter(|value| !value.is_empty()) {
        Some(value) => format!("{key} : {value}"),
        None => key.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_the_first_who_wants_an_element_keeps_it_when_it_changes() {
        let mut slot = Slot::default();
        slot.wish("goto first");
        slot.wish("goto second");
        slot.exchange("goto first", "goto first-local");
        assert_eq!(slot.value().as_deref(), Some("goto first-local"));
        // Of several who want the same, one goes.
        slot.wish("goto first-local");
        slot.exchange("goto first-local", "drop");
        assert_eq!(slot.value().as_deref(), Some("goto first-local"));
        slot.withdraw("goto first-local");
        slot.exchange("goto second", "drop");
        assert_eq!(slot.wishes, [("drop".to_owned(), 2)]);
        slot.withdraw("drop");
        slot.withdraw("drop");
        assert_eq!(slot.value(), None);
    }
}
