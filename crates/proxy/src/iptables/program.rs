//! What is programmed, and the transaction that makes it what is wanted. Pure but for one look at the kernel's tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;

use api::sort::CompactCollect as _;

use super::base::{FAMILIES, Family, SHARED, Shared, TABLES, missing_jumps, service_chains, tail};
use super::fragment::{Fragment, Part, fragment};
use super::{Transaction, saved};
use crate::error::Result;
use crate::services::ServicePort;
use crate::settings::Settings;

/// The state of the kernel as far as we know it. Services are in order: so are their rules in shared chains.
pub(crate) struct Program {
    settings: Settings,
    services: BTreeMap<String, Fragment>,
}

impl crate::backend::Backend for Program {
    type Fragment = Fragment;
    type Transaction = Transaction;

    fn fragment(ports: &[ServicePort], settings: &Settings) -> Fragment {
        fragment(ports, settings)
    }

    async fn from_scratch(settings: &Settings, services: HashMap<String, Fragment>) -> Result<(Self, Transaction)> {
        let mut present: [[String; 2]; 2] = Default::default();
        for (i, family) in FAMILIES.iter().enumerate() {
            for (j, table) in TABLES.iter().enumerate() {
                present[i][j] = saved(*family, table).await?;
            }
        }
        let program = Program { settings: settings.clone(), services: services.into_iter().collect() };
        let text = |i: usize| program.everything(i, &present[i]);
        let transaction = Transaction([text(0), text(1)]);
        Ok((program, transaction))
    }

    fn present(&self, service: &str) -> Option<&Fragment> {
        self.services.get(service)
    }

    fn len(&self) -> usize {
        self.services.len()
    }

    fn update(&mut self, services: Vec<(String, Option<Fragment>)>) -> Transaction {
        let mut shared: [BTreeSet<Shared>; 2] = Default::default();
        let mut own: [BTreeMap<String, Option<Vec<String>>>; 2] = Default::default();
        let empty = Part::default();
        for (key, new) in services {
            let old = self.services.remove(&key);
            for i in 0..2 {
                let old = old.as_ref().map_or(&empty, |fragment| &fragment.families[i]);
                let new = new.as_ref().map_or(&empty, |fragment| &fragment.families[i]);
                let names = old.shared.keys().chain(new.shared.keys());
                shared[i].extend(names.filter(|chain| old.shared.get(*chain) != new.shared.get(*chain)));
                let gone = old.chains.keys().filter(|name| !new.chains.contains_key(*name));
                own[i].extend(gone.map(|name| (name.clone(), None)));
                let changed = new.chains.iter().filter(|(name, rules)| old.chains.get(*name) != Some(*rules));
                own[i].extend(changed.map(|(name, rules)| (name.clone(), Some(rules.clone()))));
            }
            if let Some(new) = new {
                self.services.insert(key, new);
            }
        }
        let text = |i: usize| self.restore(i, &shared[i], &own[i], |_| String::new());
        Transaction([text(0), text(1)])
    }

    async fn apply(transaction: &Transaction) -> Result<()> {
        super::apply(transaction).await
    }

    fn is_empty(transaction: &Transaction) -> bool {
        transaction.is_empty()
    }

    /// Looking takes as long as reading all rules of the machine.
    async fn is_there() -> bool {
        true
    }
}

impl Program {
    /// All chains of one family, jumps to them, and an end to chains that no service has any more.
    fn everything(&self, family: usize, present: &[String; 2]) -> String {
        let parts = self.services.values().map(|fragment| &fragment.families[family]);
        let mut own: BTreeMap<String, Option<Vec<String>>> =
            service_chains(&present[0]).map(|name| (name.to_owned(), None)).compact_collect();
        for part in parts {
            own.extend(part.chains.iter().map(|(name, rules)| (name.clone(), Some(rules.clone()))));
        }
        let jumps = |table: &str| {
            let at = TABLES.iter().position(|name| *name == table).unwrap_or_default();
            missing_jumps(table, &present[at])
        };
        self.restore(family, &SHARED.into(), &own, jumps)
    }

    /// A restore of these chains and no others. `jumps` are lines to add to a table.
    fn restore(
        &self,
        family: usize,
        shared: &BTreeSet<Shared>,
        own: &BTreeMap<String, Option<Vec<String>>>,
        jumps: impl Fn(&str) -> String,
    ) -> String {
        let mut text = String::new();
        for table in TABLES {
            let shared: Vec<&Shared> = shared.iter().filter(|chain| chain.table == table).collect();
            let none = BTreeMap::new();
            let own = if table == "nat" { own } else { &none };
            if shared.is_empty() && own.is_empty() {
                continue;
            }
            let mut line = |arguments: std::fmt::Arguments<'_>| {
                // Infallible: writing to a String.
                let _ = text.write_fmt(arguments);
                text.push('\n');
            };
            line(format_args!("*{table}"));
            // Declaring a chain makes it, or empties it.
            for name in shared.iter().map(|chain| chain.name).chain(own.keys().map(String::as_str)) {
                line(format_args!(":{name} - [0:0]"));
            }
            for (name, rules) in own {
                rules.iter().flatten().for_each(|rule| line(format_args!("-A {name} {rule}")));
            }
            for chain in shared {
                let parts = self.services.values().map(|fragment| &fragment.families[family]);
                let rules = parts.filter_map(|part| part.shared.get(chain)).flatten();
                rules.for_each(|rule| line(format_args!("-A {} {rule}", chain.name)));
                let family: Family = FAMILIES[family];
                tail(&self.settings, family, *chain)
                    .iter()
                    .for_each(|rule| line(format_args!("-A {} {rule}", chain.name)));
            }
            own.iter().filter(|(_, rules)| rules.is_none()).for_each(|(name, _)| line(format_args!("-X {name}")));
            let jumps = jumps(table);
            line(format_args!("{jumps}COMMIT"));
        }
        text
    }
}
