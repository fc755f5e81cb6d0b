//! Names made numbers, and pods that are alike made one.
//!
//! Every pod is turned into what it asks of a node (a [`Class`]) and who it is among other pods (a [`Group`]). Pods of one
//! workload share both, so that work done for one serves the next.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use api::cached::Pod;
use parking_lot::Mutex;

use super::resources::Scalar;
use super::{Class, Group};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ResourceId(pub(crate) u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClassId(pub(crate) u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupId(pub(crate) u32);

#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    resources: Mutex<HashMap<Arc<str>, ResourceId>>,
    classes: Mutex<Shared<Class>>,
    groups: Mutex<Shared<Group>>,
}

/// Values by what they were made of, as long as somebody uses them.
#[derive(Debug)]
struct Shared<T> {
    known: HashMap<Box<str>, Weak<T>>,
    next: u32,
    /// How many entries there may be before the unused ones are looked for.
    sweep_at: usize,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Shared { known: HashMap::new(), next: 0, sweep_at: 1024 }
    }
}

impl<T> Shared<T> {
    fn get(&mut self, made_of: String, make: impl FnOnce(u32) -> T) -> Arc<T> {
        if let Some(value) = self.known.get(made_of.as_str()).and_then(Weak::upgrade) {
            return value;
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|_, value| value.strong_count() > 0);
            self.sweep_at = (self.known.len() * 2).max(1024);
        }
        self.next += 1;
        let value = Arc::new(make(self.next));
        self.known.insert(made_of.into(), Arc::downgrade(&value));
        value
    }
}

impl Catalogue {
    pub(crate) fn resource(&self, name: &str, amount: i64) -> Scalar {
        let mut resources = self.resources.lock();
        if let Some((name, id)) = resources.get_key_value(name) {
            return Scalar { id: *id, name: name.clone(), amount };
        }
        let (id, name) = (ResourceId(resources.len() as u32), Arc::<str>::from(name));
        resources.insert(name.clone(), id);
        Scalar { id, name, amount }
    }

    pub(crate) fn class(&self, pod: &Pod, is_placed: bool) -> Arc<Class> {
        let made_of = super::class::signature(pod, is_placed);
        self.classes.lock().get(made_of, |id| Class::new(ClassId(id), pod, is_placed, self))
    }

    pub(crate) fn group(&self, pod: &Pod) -> Arc<Group> {
        let made_of = super::group::signature(pod);
        self.groups.lock().get(made_of, |id| Group::new(GroupId(id), pod))
    }
}
