//! Which names a definition gets: the first to ask for a name in a group has it.

use std::collections::HashSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames,
};
use registry::unset::{items, or_empty};

/// What became of the names that a definition asks for.
#[derive(Debug, PartialEq)]
pub(super) struct Decision {
    /// As many of them as it can have.
    pub(super) names: CustomResourceDefinitionNames,
    /// Reason and message, if it cannot have them all.
    pub(super) conflict: Option<(&'static str, String)>,
}

/// The names that definitions of a group have.
#[derive(Default)]
pub(super) struct Taken {
    resources: HashSet<String>,
    kinds: HashSet<String>,
}

impl Taken {
    pub(super) fn add(&mut self, names: &CustomResourceDefinitionNames) {
        let singular = names.singular.iter().chain(names.short_names.iter().flatten());
        self.resources.extend(singular.chain([&names.plural]).cloned());
        self.kinds.extend(names.list_kind.iter().chain([&names.kind]).cloned());
    }
}

/// Decides over the names of one definition; `taken` are those of all of its group, its own included.
pub(super) fn decide(definition: &CustomResourceDefinition, taken: &Taken) -> Decision {
    let wanted = &definition.spec.names;
    let have = definition.status.as_ref().and_then(|status| status.accepted_names.clone()).unwrap_or_default();
    let mut names = have.clone();
    let mut conflict = None;
    let mut check = |reason, wanted: &str, have: &str, taken: &HashSet<String>| {
        let is_free = wanted == have || !taken.contains(wanted);
        if !is_free {
            conflict = Some((reason, format!("{} is already in use", api::field::quote(wanted))));
        }
        is_free
    };
    if check("PluralConflict", &wanted.plural, &have.plural, &taken.resources) {
        names.plural.clone_from(&wanted.plural);
    }
    if check("SingularConflict", or_empty(&wanted.singular), or_empty(&have.singular), &taken.resources) {
        names.singular.clone_from(&wanted.singular);
    }
    let (short, had) = (items(&wanted.short_names), items(&have.short_names));
    let mut new = short.iter().filter(|name| !had.contains(name));
    if new.all(|name| check("ShortNamesConflict", name, "", &taken.resources)) {
        names.short_names.clone_from(&wanted.short_names);
    }
    if check("KindConflict", &wanted.kind, &have.kind, &taken.kinds) {
        names.kind.clone_from(&wanted.kind);
    }
    if check("ListKindConflict", or_empty(&wanted.list_kind), or_empty(&have.list_kind), &taken.kinds) {
        names.list_kind.clone_from(&wanted.list_kind);
    }
    names.categories.clone_from(&wanted.categories);
    Decision { names, conflict }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(plural: &str, kind: &str, short: &[&str]) -> CustomResourceDefinition {
        let mut definition = CustomResourceDefinition::default();
        definition.spec.names = CustomResourceDefinitionNames {
            plural: plural.to_owned(),
            singular: Some(kind.to_lowercase()),
            kind: kind.to_owned(),
            list_kind: Some(format!("{kind}List")),
            short_names: Some(short.iter().map(|name| (*name).to_owned()).collect()),
            categories: None,
        };
        definition
    }

    #[test]
    fn the_first_to_ask_has_the_name() {
        let mut first = definition("foos", "Foo", &["f"]);
        let mut taken = Taken::default();
        let decision = decide(&first, &taken);
        assert_eq!((decision.conflict, &decision.names), (None, &first.spec.names));
        taken.add(&decision.names);
        first.status.get_or_insert_default().accepted_names = Some(decision.names);
        assert_eq!(decide(&first, &taken).conflict, None);
        for (other, reason, plural, kind) in [
            (definition("foos", "Bar", &[]), "PluralConflict", "", "Bar"),
            (definition("bars", "Foo", &[]), "ListKindConflict", "bars", ""),
            (definition("bars", "Bar", &["f"]), "ShortNamesConflict", "bars", "Bar"),
        ] {
            let Decision { names, conflict } = decide(&other, &taken);
            assert_eq!((conflict.unwrap().0, &*names.plural, &*names.kind), (reason, plural, kind));
        }
    }
}
