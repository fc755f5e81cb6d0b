//! `/metrics/cadvisor`: what the node, its pods and their containers use, under the names and labels of cAdvisor.
//!
//! Flow: a scrape -> the runtime's lists say which container is which -> each cgroup's files, read once ([`sample`]), what its
//! processes hold ([`processes`]), for the root what else the kernel counts ([`node`]) -> rows of the families below. Nothing is
//! read between scrapes. `/stats/summary` shows figures of some cgroups, too ([`system`]).
//! Not here: averages of the run queue and figures of single CPUs, which upstream's kubelet leaves off as well.

mod node;
mod processes;
mod sample;
mod system;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use api::sort::{CompactCollect as _, CompactSort as _};
use client::Body;
use client::metrics::{Kind, Metrics};
use cri::v1;
use http::Response;
use jiff::Timestamp;

pub(super) use self::node::{NodeFigures, figures, read as read_node};
use self::processes::Processes;
use self::sample::{Disk, Io, IoCost, Sample, Traffic};
pub(super) use self::sample::{Interface, Pressure, Pressures, Stall, all_interfaces};
pub(super) use self::system::{SystemContainer, system_containers};
use super::Server;
use super::metrics::{answer, failed};
use crate::cgroups::Cgroups;
use crate::node::machine::{Ids, disk, node_memory};
use crate::state::{self, label};
use crate::volumes::blocking;

/// One cgroup and whose it is.
#[derive(Clone, Default)]
struct Subject {
    /// Its path below the hierarchy's root, which begins with a slash.
    id: String,
    /// The id that the runtime gave; empty for cgroups of pods and above.
    name: String,
    image: String,
    container: String,
    pod: String,
    namespace: String,
    /// The sandbox: its network is the pod's.
    is_sandbox: bool,
    is_host_network: bool,
    /// Where the writable layer lies, and its bytes.
    layer: Option<(PathBuf, u64)>,
    /// When it was made, in seconds since 1970, if somebody knows better than its directory.
    created: Option<f64>,
}

struct Row {
    subject: Subject,
    started: Option<f64>,
    sample: Sample,
    processes: Option<Processes>,
    interfaces: Vec<Interface>,
}

/// A pod as scrapes see it: its cgroup, and the containers in it by the runtime's id.
struct PodSubjects {
    pod: Subject,
    members: Vec<Subject>,
}

pub(super) async fn serve(server: &Server) -> Response<Body> {
    let runtime = &server.kubelet.runtime;
    let lists = tokio::try_join!(runtime.containers(None), runtime.sandboxes(None), runtime.container_stats());
    let (containers, sandboxes, stats) = match lists {
        Ok(lists) => lists,
        Err(error) => return failed(&error),
    };
    let Some(cgroups) = server.kubelet.cgroups.clone() else {
        return failed(&"the kubelet keeps no cgroups of pods (--cgroups-per-qos=false), so there is nothing to read");
    };
    let Some(memory) = node_memory() else { return failed(&"the kernel does not say what the node has") };
    let pods = subjects(server, &cgroups, &containers, &sandboxes, &stats);
    let root = server.kubelet.settings.root_dir.clone();
    let now = server.kubelet.clock.now();
    let rendered = blocking(move || {
        let rows = read(&cgroups, pods);
        let metrics = Metrics::new();
        machine(&metrics, memory, &Ids::read());
        families(&metrics, &rows, now);
        file_systems(&metrics, &rows, &root);
        Ok(metrics)
    });
    match rendered.await {
        Ok(metrics) => answer(&metrics),
        Err(error) => failed(&error),
    }
}

fn subjects(
    server: &Server,
    cgroups: &Cgroups,
    containers: &[v1::Container],
    sandboxes: &[v1::PodSandbox],
    stats: &[v1::ContainerStats],
) -> Vec<PodSubjects> {
    let mut layers: HashMap<&str, (PathBuf, u64)> = HashMap::new();
    for stat in stats {
        let (Some(attributes), Some(layer)) = (&stat.attributes, &stat.writable_layer) else { continue };
        let place = layer.fs_id.as_ref().map(|fs| PathBuf::from(&fs.mountpoint)).unwrap_or_default();
        layers.insert(&attributes.id, (place, layer.used_bytes.as_ref().map_or(0, |bytes| bytes.value)));
    }
    let mut members: HashMap<&str, Vec<Subject>> = HashMap::new();
    for sandbox in sandboxes {
        let Some(metadata) = &sandbox.metadata else { continue };
        let created = seconds(sandbox.created_at);
        let subject = Subject { name: sandbox.id.clone(), is_sandbox: true, created, ..Subject::default() };
        members.entry(&metadata.uid).or_default().push(subject);
    }
    for container in containers {
        let Some(uid) = container.labels.get(label::POD_UID) else { continue };
        let image = container.image.as_ref();
        let asked = image.map(|image| image.user_specified_image.clone()).filter(|image| !image.is_empty());
        members.entry(uid).or_default().push(Subject {
            name: container.id.clone(),
            image: asked.or_else(|| image.map(|image| image.image.clone())).unwrap_or_default(),
            container: container.labels.get(label::CONTAINER_NAME).cloned().unwrap_or_default(),
            layer: layers.get(container.id.as_str()).cloned(),
            created: seconds(container.created_at),
            ..Subject::default()
        });
    }
    let pod_subjects = |pod: &k8s_openapi::api::core::v1::Pod| {
        let is_host_network = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
        let (name, namespace) = (state::name(pod).to_owned(), state::namespace(pod).to_owned());
        let own =
            |subject: Subject| Subject { pod: name.clone(), namespace: namespace.clone(), is_host_network, ..subject };
        let members: Vec<Subject> =
            members.get(state::uid(pod)).cloned().unwrap_or_default().into_iter().map(own).collect();
        let created = first_created(&members);
        PodSubjects { pod: own(Subject { id: cgroups.pod_path(pod), created, ..Subject::default() }), members }
    };
    server.workers.pods().iter().map(|pod| pod_subjects(pod)).collect()
}

/// Nanoseconds of the runtime in seconds; nothing if it does not say.
fn seconds(nanoseconds: i64) -> Option<f64> {
    (nanoseconds > 0).then_some((nanoseconds / 1_000_000_000) as f64)
}

/// A pod is as old as the first of what it is made of.
fn first_created(members: &[Subject]) -> Option<f64> {
    members.iter().filter_map(|member| member.created).min_by(f64::total_cmp)
}

/// When the machine started, from the text of `/proc/stat`.
fn boot_time(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

fn read(cgroups: &Cgroups, pods: Vec<PodSubjects>) -> Vec<Row> {
    let mut levels = vec!["/".to_owned()];
    levels.extend(cgroups.level_paths());
    let mut rows: Vec<Row> =
        levels.into_iter().filter_map(|id| row(cgroups, Subject { id, ..Subject::default() })).collect();
    let machine = node::Machine::read();
    if let Some(root) = rows.first_mut().filter(|row| row.subject.id == "/") {
        root.started = boot_time(&machine.stat);
        node::complete(&mut root.sample, &machine);
        root.interfaces = sample::interfaces(&std::fs::read_to_string("/proc/net/dev").unwrap_or_default());
    }
    for PodSubjects { pod, members } in pods {
        let children = cgroups.children(&pod.id);
        let path = pod.id.clone();
        let Some(of_pod) = row(cgroups, pod) else { continue };
        rows.push(of_pod);
        for member in members {
            let Some(child) = of_container(&children, &member.name) else { continue };
            let subject = Subject { id: format!("{path}/{child}"), ..member };
            let Some(mut row) = row(cgroups, subject) else { continue };
            row.processes = Some(Processes::read(&row.sample.pids));
            if row.subject.is_sandbox && !row.subject.is_host_network {
                let of_first = row.sample.pids.first().map(|pid| format!("/proc/{pid}/net/dev"));
                let text = of_first.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
                row.interfaces = sample::interfaces(&text);
            }
            rows.push(row);
        }
    }
    rows.iter_mut().for_each(|row| node::complete_swap(&mut row.sample, &machine));
    rows
}

/// None for a cgroup that has gone since it was listed.
fn row(cgroups: &Cgroups, subject: Subject) -> Option<Row> {
    let directory = cgroups.directory("memory", &subject.id).filter(|directory| directory.exists())?;
    let started = subject.created.or_else(|| made(&directory, cgroups.is_v2()));
    let read = |controller: &str, file: &str| read_file(cgroups, &subject.id, controller, file);
    let sample = Sample::read(cgroups.is_v2(), &read);
    Some(Row { sample, started, processes: None, interfaces: Vec::new(), subject })
}

/// When a cgroup was made, in seconds since 1970. The time of its directory moves with what is made in it, and when the kernel
/// forgets it; that of these files seldom does (`GetSpec` of cAdvisor).
fn made(directory: &Path, is_v2: bool) -> Option<f64> {
    let file = directory.join(if is_v2 { "cgroup.events" } else { "cgroup.clone_children" });
    let modified = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    let first = modified(directory).into_iter().chain(modified(&file)).min()?;
    first.duration_since(std::time::UNIX_EPOCH).ok().map(|since| since.as_secs() as f64)
}

fn read_file(cgroups: &Cgroups, id: &str, controller: &str, file: &str) -> Option<String> {
    std::fs::read_to_string(cgroups.directory(controller, id)?.join(file)).ok()
}

/// Which of a pod's cgroups is a container's: it is named after the container by every runtime, with words of systemd around
/// the name for its driver.
fn of_container<'a>(children: &'a [String], id: &str) -> Option<&'a String> {
    children.iter().find(|child| child.contains(id))
}

/// How long tasks wait for these resources, for `/stats/summary`: those of the node under `/`, of pods under the paths of
/// their cgroups, of their containers, which are given for each path, under their ids. Nothing if the kernel does not
/// measure it; only version 2 of cgroups does.
pub(super) fn pressures(
    cgroups: &Cgroups,
    resources: &[&'static str],
    pods: &[(String, Vec<String>)],
) -> HashMap<String, Pressures> {
    let of = |path: &str| {
        sample::pressures(&|controller: &str, file: &str| read_file(cgroups, path, controller, file), resources)
    };
    let node = if cgroups.is_v2() { of("/") } else { Pressures::new() };
    if node.is_empty() {
        return HashMap::new();
    }
    let mut found = HashMap::from([("/".to_owned(), node)]);
    for (pod, containers) in pods {
        let children = cgroups.children(pod);
        found.insert(pod.clone(), of(pod));
        for id in containers {
            if let Some(child) = of_container(&children, id) {
                found.insert(id.clone(), of(&format!("{pod}/{child}")));
            }
        }
    }
    found
}

impl Subject {
    /// The labels of a row, with those of its own.
    fn with<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let mut labels = vec![
            ("container", self.container.as_str()),
            ("id", &self.id),
            ("image", &self.image),
            ("name", &self.name),
            ("namespace", &self.namespace),
            ("pod", &self.pod),
        ];
        labels.extend(more);
        labels.compact_sort();
        labels
    }
}

/// A family with one number a cgroup.
type Simple = (Kind, &'static str, &'static str, fn(&Row) -> Option<f64>);

fn float(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

use Kind::{Counter, Gauge};

const SIMPLE: &[Simple] = &[
    (Counter, "container_cpu_user_seconds_total", "Cumulative user cpu time consumed in seconds.", |row| {
        row.sample.user_seconds
    }),
    (Counter, "container_cpu_system_seconds_total", "Cumulative system cpu time consumed in seconds.", |row| {
        row.sample.system_seconds
    }),
    (Counter, "container_cpu_cfs_periods_total", "Number of elapsed enforcement period intervals.", |row| {
        row.sample.quota.and(float(row.sample.periods))
    }),
    (Counter, "container_cpu_cfs_throttled_periods_total", "Number of throttled period intervals.", |row| {
        row.sample.quota.and(float(row.sample.throttled_periods))
    }),
    (
        Counter,
        "container_cpu_cfs_throttled_seconds_total",
        "Total time duration the container has been throttled.",
        |row| row.sample.quota.and(row.sample.throttled_seconds),
    ),
    (Counter, "container_cpu_cfs_burst_periods_total", "Number of periods when burst occurs.", |row| {
        row.sample.quota.and(float(row.sample.burst_periods))
    }),
    (Counter, "container_cpu_cfs_burst_seconds_total", "Total time duration the container has been bursted.", |row| {
        row.sample.quota.and(row.sample.burst_seconds)
    }),
    (Gauge, "container_spec_cpu_shares", "CPU share of the container.", |row| float(row.sample.shares)),
    (Gauge, "container_spec_cpu_period", "CPU period of the container.", |row| float(row.sample.period)),
    (Gauge, "container_spec_cpu_quota", "CPU quota of the container.", |row| float(row.sample.quota)),
    (Gauge, "container_memory_usage_bytes", "Current memory usage, including all memory.", |row| {
        float(row.sample.usage)
    }),
    (Gauge, "container_memory_working_set_bytes", "Current working set in bytes.", |row| float(row.sample.working_set)),
    (Gauge, "container_memory_max_usage_bytes", "Maximum memory usage recorded in bytes.", |row| {
        float(row.sample.max_usage)
    }),
    (Gauge, "container_memory_cache", "Bytes of page cache memory.", |row| float(row.sample.cache)),
    (Gauge, "container_memory_rss", "Size of RSS in bytes.", |row| float(row.sample.rss)),
    (Gauge, "container_memory_swap", "Container swap usage in bytes.", |row| float(row.sample.swap)),
    (Gauge, "container_memory_kernel_usage", "Size of kernel memory allocated in bytes.", |row| {
        float(row.sample.kernel)
    }),
    (Gauge, "container_memory_mapped_file", "Size of memory mapped files in bytes.", |row| {
        float(row.sample.mapped_file)
    }),
    (Gauge, "container_memory_total_active_file_bytes", "Current total active file in bytes.", |row| {
        float(row.sample.active_file)
    }),
    (Gauge, "container_memory_total_inactive_file_bytes", "Current total inactive file in bytes.", |row| {
        float(row.sample.inactive_file)
    }),
    (Counter, "container_memory_failcnt", "Number of memory usage hits limits.", |row| float(row.sample.limit_hits)),
    (Counter, "container_oom_events_total", "Count of out of memory events observed for the container.", |row| {
        float(row.sample.ooms)
    }),
    (Gauge, "container_spec_memory_limit_bytes", "Memory limit for the container.", |row| {
        float(row.sample.memory_limit)
    }),
    (Gauge, "container_spec_memory_reservation_limit_bytes", "Memory reservation limit for the container.", |row| {
        float(row.sample.reservation)
    }),
    (Gauge, "container_spec_memory_swap_limit_bytes", "Memory swap limit for the container.", |row| {
        float(row.sample.swap_limit)
    }),
    (Gauge, "container_threads", "Number of threads running inside the container.", |row| float(row.sample.threads)),
    (
        Gauge,
        "container_threads_max",
        "Maximum number of threads allowed inside the container, infinity if value is zero.",
        |row| float(row.sample.threads_max),
    ),
    (Gauge, "container_processes", "Number of processes running inside the container.", |row| {
        row.processes.as_ref().map(|processes| processes.count as f64)
    }),
    (Gauge, "container_file_descriptors", "Number of open file descriptors for the container.", |row| {
        row.processes.as_ref().map(|processes| processes.descriptors as f64)
    }),
    (Gauge, "container_sockets", "Number of open sockets for the container.", |row| {
        row.processes.as_ref().map(|processes| processes.sockets as f64)
    }),
    (Gauge, "container_start_time_seconds", "Start time of the container since unix epoch in seconds.", |row| {
        row.started
    }),
];

/// Families with one number a device and cgroup.
type OfDevice = (&'static str, &'static str, fn(&Io) -> u64);

const OF_DEVICES: &[OfDevice] = &[
    ("container_fs_reads_bytes_total", "Cumulative count of bytes read", |io| io.read_bytes),
    ("container_fs_reads_total", "Cumulative count of reads completed", |io| io.reads),
    ("container_fs_writes_bytes_total", "Cumulative count of bytes written", |io| io.write_bytes),
    ("container_fs_writes_total", "Cumulative count of writes completed", |io| io.writes),
];

type OfCost = (&'static str, &'static str, fn(&IoCost) -> u64);

const OF_COSTS: &[OfCost] = &[
    ("container_fs_io_cost_usage_seconds_total", "Cumulative IOCost usage in seconds", |cost| cost.usage),
    ("container_fs_io_cost_wait_seconds_total", "Cumulative IOCost wait in seconds", |cost| cost.wait),
    ("container_fs_io_cost_indebt_seconds_total", "Cumulative IOCost debt in seconds", |cost| cost.indebt),
    ("container_fs_io_cost_indelay_seconds_total", "Cumulative IOCost delay in seconds", |cost| cost.indelay),
];

type OfInterface = (&'static str, &'static str, fn(&Interface) -> &Traffic, fn(&Traffic) -> u64);

const OF_INTERFACES: &[OfInterface] = &[
    ("container_network_receive_bytes_total", "Cumulative count of bytes received", received, bytes),
    ("container_network_receive_packets_total", "Cumulative count of packets received", received, packets),
    (
        "container_network_receive_errors_total",
        "Cumulative count of errors encountered while receiving",
        received,
        errors,
    ),
    (
        "container_network_receive_packets_dropped_total",
        "Cumulative count of packets dropped while receiving",
        received,
        dropped,
    ),
    ("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", sent, bytes),
    ("container_network_transmit_packets_total", "Cumulative count of packets transmitted", sent, packets),
    (
        "container_network_transmit_errors_total",
        "Cumulative count of errors encountered while transmitting",
        sent,
        errors,
    ),
    (
        "container_network_transmit_packets_dropped_total",
        "Cumulative count of packets dropped while transmitting",
        sent,
        dropped,
    ),
];

fn received(interface: &Interface) -> &Traffic {
    &interface.received
}

fn sent(interface: &Interface) -> &Traffic {
    &interface.sent
}

fn bytes(traffic: &Traffic) -> u64 {
    traffic.bytes
}

fn packets(traffic: &Traffic) -> u64 {
    traffic.packets
}

fn errors(traffic: &Traffic) -> u64 {
    traffic.errors
}

fn dropped(traffic: &Traffic) -> u64 {
    traffic.dropped
}

/// What stands in `/proc/pressure` and the families of it: the resource, those that waited, those where all did.
const PRESSURES: &[(&str, &str, &str)] = &[
    ("cpu", "container_pressure_cpu_waiting_seconds_total", "container_pressure_cpu_stalled_seconds_total"),
    ("io", "container_pressure_io_waiting_seconds_total", "container_pressure_io_stalled_seconds_total"),
    ("memory", "container_pressure_memory_waiting_seconds_total", "container_pressure_memory_stalled_seconds_total"),
];

fn families(metrics: &Metrics, rows: &[Row], now: Timestamp) {
    for (kind, name, help, value) in SIMPLE {
        metrics.set_rows(*kind, name, help, |all| {
            for row in rows {
                if let Some(value) = value(row) {
                    all.add(&row.subject.with(&[]), value);
                }
            }
        });
    }
    let now = now.as_second() as f64;
    metrics.set_rows(Gauge, "container_last_seen", "Last time a container was seen by the exporter", |all| {
        rows.iter().for_each(|row| all.add(&row.subject.with(&[]), now));
    });
    // Health checks are the kubelet's here: none is the container's own.
    metrics.set_rows(Gauge, "container_health_state", "The result of the container's health check", |all| {
        rows.iter().for_each(|row| all.add(&row.subject.with(&[]), -1.0));
    });
    let name = "container_cpu_usage_seconds_total";
    metrics.set_rows(Counter, name, "Cumulative cpu time consumed in seconds.", |all| {
        for row in rows {
            if let Some(seconds) = row.sample.cpu_seconds {
                all.add(&row.subject.with(&[("cpu", "total")]), seconds);
            }
        }
    });
    let name = "container_memory_failures_total";
    metrics.set_rows(Counter, name, "Cumulative count of memory allocation failures.", |all| {
        for row in rows {
            let faults = [("pgfault", row.sample.page_faults), ("pgmajfault", row.sample.major_page_faults)];
            for (kind, count) in faults.into_iter().filter_map(|(kind, count)| Some((kind, count?))) {
                let labels = row.subject.with(&[("failure_type", kind), ("scope", "hierarchy")]);
                all.add(&labels, count as f64);
            }
        }
    });
    metrics.set_rows(Gauge, "container_tasks_state", "Number of tasks in given state", |all| {
        for row in rows {
            for (state, count) in row.processes.iter().flat_map(Processes::states) {
                all.add(&row.subject.with(&[("state", state)]), count as f64);
            }
        }
    });
    let help = "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice";
    metrics.set_rows(Gauge, "container_ulimits_soft", help, |all| {
        for row in rows {
            if let Some(most) = row.processes.as_ref().and_then(|processes| processes.max_open_files) {
                all.add(&row.subject.with(&[("ulimit", "max_open_files")]), most);
            }
        }
    });
    for (resource, waiting, stalled) in PRESSURES {
        let pressures = || rows.iter().filter_map(|row| Some((row, row.sample.pressure.get(resource)?)));
        metrics.set_rows(Counter, waiting, "Total time duration tasks in the container have waited.", |all| {
            pressures().for_each(|(row, pressure)| all.add(&row.subject.with(&[]), pressure.some.seconds()));
        });
        metrics.set_rows(
            Counter,
            stalled,
            "Total time duration no tasks in the container could make progress.",
            |all| {
                pressures().for_each(|(row, pressure)| all.add(&row.subject.with(&[]), pressure.full.seconds()));
            },
        );
    }
    for (name, help, direction, count) in OF_INTERFACES {
        metrics.set_rows(Counter, name, help, |all| {
            for row in rows {
                for interface in &row.interfaces {
                    let labels = row.subject.with(&[("interface", &interface.name)]);
                    all.add(&labels, count(direction(interface)) as f64);
                }
            }
        });
    }
    devices(metrics, rows);
}

fn devices(metrics: &Metrics, rows: &[Row]) {
    let numbers: std::collections::BTreeSet<&str> =
        rows.iter().flat_map(|row| row.sample.io.keys().map(String::as_str)).compact_collect();
    let names: BTreeMap<&str, String> =
        numbers.into_iter().map(|number| (number, device_name(number))).compact_collect();
    for (name, help, count) in OF_DEVICES {
        metrics.set_rows(Counter, name, help, |all| {
            for row in rows {
                for (number, io) in &row.sample.io {
                    let labels = row.subject.with(&[("device", &names[number.as_str()])]);
                    all.add(&labels, count(io) as f64);
                }
            }
        });
    }
    for (name, help, spent) in OF_COSTS {
        metrics.set_rows(Counter, name, help, |all| {
            for row in rows {
                for (number, io) in &row.sample.io {
                    let labels = row.subject.with(&[("device", &names[number.as_str()])]);
                    io.cost.iter().for_each(|cost| all.add(&labels, spent(cost) as f64 / 1e6));
                }
            }
        });
    }
    let (name, help) = ("container_blkio_device_usage_total", "Blkio device bytes usage");
    metrics.set_rows(Counter, name, help, |all| {
        for row in rows {
            for (number, io) in &row.sample.io {
                let (major, minor) = number.split_once(':').unwrap_or((number, ""));
                for (operation, count) in [("Read", io.read_bytes), ("Write", io.write_bytes)] {
                    let device = [("device", names[number.as_str()].as_str()), ("major", major), ("minor", minor)];
                    let labels: Vec<_> = device.into_iter().chain([("operation", operation)]).collect();
                    all.add(&row.subject.with(&labels), count as f64);
                }
            }
        }
    });
}

/// `/dev/sda` for `8:0`; empty where the kernel names no such device.
fn device_name(number: &str) -> String {
    let text = std::fs::read_to_string(format!("/sys/dev/block/{number}/uevent")).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    name.map(|name| format!("/dev/{name}")).unwrap_or_default()
}

fn device_of(path: &Path) -> String {
    device_number(path).map(|number| device_name(&number)).unwrap_or_default()
}

/// `8:0`, of the file system that a path is on.
fn device_number(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(path).ok()?.dev();
    Some(format!("{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device)))
}

/// What writable layers take, and the file system of the kubelet's own directory as the node's.
fn file_systems(metrics: &Metrics, rows: &[Row], root: &Path) {
    let mut seen: BTreeMap<&Path, (String, u64, u64)> = BTreeMap::new();
    let mut used = Vec::new();
    let mut limits = Vec::new();
    for row in rows {
        let (place, bytes) = match &row.subject.layer {
            Some((place, bytes)) => (place.as_path(), Some(*bytes)),
            None if row.subject.id == "/" => (root, None),
            None => continue,
        };
        let (device, capacity, taken) = seen.entry(place).or_insert_with(|| {
            let (capacity, free) = disk(place).unwrap_or_default();
            (device_of(place), capacity, capacity.saturating_sub(free))
        });
        used.push((row, device.clone(), bytes.unwrap_or(*taken)));
        limits.push((row, device.clone(), *capacity));
    }
    for (name, help, values) in [
        ("container_fs_usage_bytes", "Number of bytes that are consumed by the container on this filesystem.", &used),
        (
            "container_fs_limit_bytes",
            "Number of bytes that can be consumed by the container on this filesystem.",
            &limits,
        ),
    ] {
        metrics.set_rows(Gauge, name, help, |all| {
            for (row, device, value) in values {
                all.add(&row.subject.with(&[("device", device)]), *value as f64);
            }
        });
    }
    inodes(metrics, rows, root);
    disk_activity(metrics, rows, root);
}

/// A family with one number for the disk of the node.
type OfDisk = (Kind, &'static str, &'static str, fn(&Disk) -> f64);

const OF_DISK: &[OfDisk] = &[
    (Counter, "container_fs_reads_merged_total", "Cumulative count of reads merged", |disk| disk.reads_merged as f64),
    (Counter, "container_fs_sector_reads_total", "Cumulative count of sector reads completed", |disk| {
        disk.sectors_read as f64
    }),
    (Counter, "container_fs_read_seconds_total", "Cumulative count of seconds spent reading", |disk| {
        disk.read_time as f64 / 1e3
    }),
    (Counter, "container_fs_writes_merged_total", "Cumulative count of writes merged", |disk| {
        disk.writes_merged as f64
    }),
    (Counter, "container_fs_sector_writes_total", "Cumulative count of sector writes completed", |disk| {
        disk.sectors_written as f64
    }),
    (Counter, "container_fs_write_seconds_total", "Cumulative count of seconds spent writing", |disk| {
        disk.write_time as f64 / 1e3
    }),
    (Gauge, "container_fs_io_current", "Number of I/Os currently in progress", |disk| disk.in_progress as f64),
    (Counter, "container_fs_io_time_seconds_total", "Cumulative count of seconds spent doing I/Os", |disk| {
        disk.busy_time as f64 / 1e3
    }),
    (Counter, "container_fs_io_time_weighted_seconds_total", "Cumulative weighted I/O time in seconds", |disk| {
        disk.weighted_time as f64 / 1e3
    }),
];

/// The kernel counts these for whole devices, not for cgroups.
fn disk_activity(metrics: &Metrics, rows: &[Row], root: &Path) {
    let Some(node) = rows.iter().find(|row| row.subject.id == "/") else { return };
    let Some(number) = device_number(root) else { return };
    let text = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let Some(disk) = sample::disk(&text, &number) else { return };
    let device = device_name(&number);
    for (kind, name, help, value) in OF_DISK {
        metrics.set_rows(*kind, name, help, |all| all.add(&node.subject.with(&[("device", &device)]), value(&disk)));
    }
}

fn inodes(metrics: &Metrics, rows: &[Row], root: &Path) {
    let Some(node) = rows.iter().find(|row| row.subject.id == "/") else { return };
    let Ok(stat) = nix::sys::statvfs::statvfs(root) else { return };
    let device = device_of(root);
    for (name, help, count) in [
        ("container_fs_inodes_total", "Number of Inodes", stat.files()),
        ("container_fs_inodes_free", "Number of available Inodes", stat.files_available()),
    ] {
        metrics.set_rows(Gauge, name, help, |all| all.add(&node.subject.with(&[("device", &device)]), count as f64));
    }
}

fn machine(metrics: &Metrics, memory: u64, ids: &Ids) {
    let labels = [
        ("boot_id", ids.boot_id.as_str()),
        ("machine_id", ids.machine_id.as_str()),
        ("system_uuid", ids.system_uuid.as_str()),
    ];
    let set = |name, help, value: f64| metrics.gauge(name, help, &labels).set(value);
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    set("machine_cpu_cores", "Number of logical CPU cores.", cpus as f64);
    let (sockets, cores) = topology(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
    set("machine_cpu_physical_cores", "Number of physical CPU cores.", cores as f64);
    set("machine_cpu_sockets", "Number of CPU sockets.", sockets as f64);
    set("machine_memory_bytes", "Amount of memory installed on the machine.", memory as f64);
    let swap = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let swap =
        swap.lines().find_map(|line| line.strip_prefix("SwapTotal:")?.split_whitespace().next()?.parse::<f64>().ok());
    set("machine_swap_bytes", "Amount of swap memory available on the machine.", swap.unwrap_or_default() * 1024.0);
    let no_error = |name, help| metrics.gauge(name, help, &[]).set(0.0);
    no_error("machine_scrape_error", "1 if there was an error while getting machine metrics, 0 otherwise.");
    no_error("container_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise");
    let kernel = nix::sys::utsname::uname().ok().map(|name| name.release().to_string_lossy().into_owned());
    let labels = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", kernel.as_deref().unwrap_or_default()),
        ("osVersion", ""),
    ];
    let help = "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.";
    metrics.gauge("cadvisor_version_info", help, &labels).set(1.0);
}

/// Sockets and cores in the text of `/proc/cpuinfo`; one of each where it tells none.
fn topology(text: &str) -> (usize, usize) {
    let mut cores = std::collections::BTreeSet::new();
    let mut socket = "0";
    for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
        match name.trim() {
            "physical id" => socket = value.trim(),
            "core id" => drop(cores.insert((socket.to_owned(), value.trim().to_owned()))),
            _ => {}
        }
    }
    let sockets: std::collections::BTreeSet<_> = cores.iter().map(|(socket, _)| socket).compact_collect();
    (sockets.len().max(1), cores.len().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_machine_say_of_which() {
        let metrics = Metrics::new();
        let ids = Ids { machine_id: "m".into(), system_uuid: "u".into(), boot_id: "b".into() };
        machine(&metrics, 1 << 30, &ids);
        let text = metrics.render();
        let row = "\nmachine_memory_bytes{boot_id=\"b\",machine_id=\"m\",system_uuid=\"u\"} 1073741824\n";
        assert!(text.contains(row) && text.contains("\nmachine_scrape_error 0\n"), "{text}");
    }

    #[test]
    fn things_are_as_old_as_their_runtime_says() {
        let member = |created| Subject { created, ..Subject::default() };
        assert_eq!((seconds(0), seconds(1_700_000_000_999_999_999)), (None, Some(1_700_000_000.0)));
        assert_eq!(first_created(&[member(Some(9.0)), member(None), member(Some(4.0))]), Some(4.0));
        assert_eq!(first_created(&[member(None)]), None);
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\nprocesses 7\n"), Some(1_700_000_000.0));
        assert_eq!(boot_time("cpu 1 2\n"), None);
    }

    #[test]
    fn a_cgroup_is_not_made_again_with_what_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000);
        for (file, is_v2) in [("cgroup.events", true), ("cgroup.clone_children", false)] {
            let file = std::fs::File::create(dir.path().join(file)).unwrap();
            file.set_modified(long_ago).unwrap();
            assert_eq!(made(dir.path(), is_v2), Some(1000.0));
        }
        assert_eq!(made(&dir.path().join("missing"), true), None);
    }
}
