//! Huge pages: which the node has, and what a size of them is called. `hugepages-2Mi` is a resource, `HugePages-2Mi` the medium of a
//! volume, and cgroups limit `2MB`. Sizes are in bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use api::quantity::{Format, Quantity};
use api::sort::CompactCollect as _;
use cri::v1::HugepageLimit;
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::{resources, state};

/// Where the kernel shows them.
pub(crate) const DIRECTORY: &str = "/sys/kernel/mm/hugepages";
const RESOURCE: &str = "hugepages-";
const MEDIUM: &str = "HugePages";

/// How many pages of each size there are. A size of which there are none is shown as well.
pub(crate) type HugePages = BTreeMap<i64, i64>;

/// Nothing where the kernel has no huge pages (`GetHugePagesInfo` of cAdvisor).
pub(crate) fn read(directory: &Path) -> HugePages {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let pages = entries.filter_map(|entry| {
        let name = entry.file_name();
        let kib: i64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count = std::fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
        Some((kib.checked_mul(1024)?, count.trim().parse().ok()?))
    });
    pages.collect()
}

pub(crate) fn is_resource(name: &str) -> bool {
    name.starts_with(RESOURCE)
}

pub(crate) fn resource(size: i64) -> String {
    format!("{RESOURCE}{}", Quantity::new(size, Format::BinarySI))
}

/// All pages of a size together.
pub(crate) fn amount(size: i64, count: i64) -> Quantity {
    Quantity::new(size.saturating_mul(count), Format::BinarySI)
}

/// The largest unit that divides it (`HugePageUnitSizeFromByteSize`, v1.36).
fn name_in_cgroups(mut size: i64) -> String {
    let mut units = ["B", "KB", "MB", "GB", "TB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while size > 0 && size % 1024 == 0 {
        let Some(larger) = units.next() else { break };
        (size, unit) = (size / 1024, larger);
    }
    format!("{size}{unit}")
}

/// The sizes that a pod asks for, as names of resources.
pub(crate) fn of_pod(pod: &Pod) -> BTreeSet<String> {
    let containers = state::all_containers(pod);
    let own = pod.spec.iter().filter_map(|spec| spec.resources.as_ref());
    let all = containers.iter().filter_map(|container| container.resources.as_ref()).chain(own);
    let lists = all.flat_map(|resources| [resources.requests.as_ref(), resources.limits.as_ref()]).flatten();
    lists.flat_map(|list| list.keys()).filter(|name| is_resource(name)).cloned().compact_collect()
}

/// What a container may have: as much as it, or its pod as a whole, asks for, and nothing of other sizes
/// (`GetHugepageLimitsFromResources`, v1.36).
pub(crate) fn limits_of_container(pod: &Pod, container: &Container, pages: &HugePages) -> Vec<HugepageLimit> {
    let limit = |size: &i64| {
        let limit = resources::limit_in_pod(pod, container, &resource(*size)).unwrap_or_default();
        HugepageLimit { page_size: name_in_cgroups(*size), limit: limit.value().max(0) as u64 }
    };
    pages.keys().map(limit).collect()
}

/// The same of all its containers together.
pub(crate) fn limits_of_pod(pod: &Pod, pages: &HugePages) -> Vec<(String, u64)> {
    let limit = |size: &i64| {
        let limit = resources::pod_request(pod, &resource(*size));
        (name_in_cgroups(*size), limit.value().max(0) as u64)
    };
    pages.keys().map(limit).collect()
}

/// A volume of huge pages that cannot be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MediumError {
    #[error("medium: {0} can't be used if container requests multiple huge page sizes")]
    SeveralSizes(String),
    #[error("medium {0}: hugePages storage requested, but there is no resource request for huge pages")]
    NotRequested(String),
}

pub(crate) fn is_medium(medium: &str) -> bool {
    medium.strip_prefix(MEDIUM).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The size of the pages that a volume of a pod is made of (`getPageSizeMountOption`, v1.36).
pub(crate) fn page_size(medium: &str, pod: &Pod) -> Result<i64, MediumError> {
    let bytes = |size: &str| size.parse::<Quantity>().ok().map(|size| size.value());
    let asked = of_pod(pod);
    let sizes: BTreeSet<i64> = asked.iter().filter_map(|name| bytes(name.strip_prefix(RESOURCE)?)).collect();
    let found = match medium.strip_prefix(MEDIUM).and_then(|rest| rest.strip_prefix('-')) {
        Some(size) => bytes(size).filter(|size| sizes.contains(size)),
        None if sizes.len() > 1 => return Err(MediumError::SeveralSizes(medium.to_owned())),
        None => sizes.first().copied(),
    };
    found.ok_or_else(|| MediumError::NotRequested(medium.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::tests::container_with;
    use k8s_openapi::api::core::v1::PodSpec;

    fn pod(containers: &[&str], whole: &str) -> Pod {
        let containers = containers.iter().map(|limits| container_with("c", limits, limits)).collect();
        let resources = container_with("", whole, whole).resources.filter(|_| !whole.is_empty());
        Pod { spec: Some(PodSpec { containers, resources, ..Default::default() }), ..Default::default() }
    }

    #[test]
    fn pages_are_found_where_the_kernel_shows_them() {
        let dir = tempfile::tempdir().unwrap();
        for (name, count) in [
            ("hugepages-2048kB", "512\n"),
            ("hugepages-1048576kB", "0\n"),
            ("hugepages-64kB", "many\n"),
            ("hugepages-xkB", "1\n"),
            ("other", "1\n"),
        ] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("nr_hugepages"), count).unwrap();
        }
        assert_eq!(read(dir.path()), HugePages::from([(2 << 20, 512), (1 << 30, 0)]));
        assert_eq!(read(&dir.path().join("missing")), HugePages::new());
    }

    #[test]
    fn sizes_have_their_names() {
        for (size, of_resource, in_cgroups) in [
            (64 << 10, "hugepages-64Ki", "64KB"),
            (2 << 20, "hugepages-2Mi", "2MB"),
            (512 << 20, "hugepages-512Mi", "512MB"),
            (1 << 30, "hugepages-1Gi", "1GB"),
        ] {
            assert_eq!((resource(size).as_str(), name_in_cgroups(size).as_str()), (of_resource, in_cgroups));
        }
        assert_eq!(amount(2 << 20, 512).to_string(), "1Gi");
        assert_eq!(amount(2 << 20, 0).to_string(), "0");
    }

    #[test]
    fn containers_have_no_huge_pages_but_those_they_ask_for() {
        const MI: u64 = 1 << 20;
        let pages = HugePages::from([(2 << 20, 9), (1 << 30, 0)]);
        for (containers, whole, of_first, of_all) in [
            (&["", ""][..], "", [0, 0], [0, 0]),
            (&["hugepages-2Mi=4Mi", "hugepages-2Mi=6Mi"], "", [4 * MI, 0], [10 * MI, 0]),
            (&["", "hugepages-2Mi=6Mi"], "hugepages-2Mi=8Mi", [8 * MI, 0], [8 * MI, 0]),
            (&["hugepages-64Ki=64Ki"], "", [0, 0], [0, 0]),
        ] {
            let pod = pod(containers, whole);
            let first = &pod.spec.as_ref().unwrap().containers[0];
            let found = limits_of_container(&pod, first, &pages).into_iter().map(|it| (it.page_size, it.limit));
            let named = |[small, large]: [u64; 2]| vec![("2MB".to_owned(), small), ("1GB".to_owned(), large)];
            assert_eq!(found.collect::<Vec<_>>(), named(of_first), "{containers:?} {whole}");
            assert_eq!(limits_of_pod(&pod, &pages), named(of_all), "{containers:?} {whole}");
        }
    }

    #[test]
    fn a_volume_has_pages_that_its_pod_asks_for() {
        let none = |medium: &str| Err(MediumError::NotRequested(medium.to_owned()));
        for (medium, containers, expected) in [
            ("HugePages", &["hugepages-2Mi=4Mi", "hugepages-2Mi=2Mi"][..], Ok(2 << 20)),
            ("HugePages", &["hugepages-2Mi=4Mi,hugepages-1Gi=1Gi"], Err(MediumError::SeveralSizes("HugePages".into()))),
            ("HugePages-1Gi", &["hugepages-2Mi=4Mi,hugepages-1Gi=1Gi"], Ok(1 << 30)),
            ("HugePages-2048Ki", &["hugepages-2Mi=4Mi"], Ok(2 << 20)),
            ("HugePages-1Gi", &["hugepages-2Mi=4Mi"], none("HugePages-1Gi")),
            ("HugePages-x", &["hugepages-2Mi=4Mi"], none("HugePages-x")),
            ("HugePages", &[""], none("HugePages")),
        ] {
            assert_eq!(page_size(medium, &pod(containers, "")), expected, "{medium} {containers:?}");
        }
        let media = ["HugePages", "HugePages-2Mi", "HugePagesX", "Memory"].map(is_medium);
        assert_eq!(media, [true, true, false, false]);
    }
}
