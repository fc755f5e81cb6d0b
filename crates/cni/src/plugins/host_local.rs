//! `host-local`: addresses from ranges in the configuration, leases in files.
//!
//! A directory per network, a file per leased address holding `<container id>\r\n<interface>`, and `last_reserved_ip.<n>` per
//! range set: the layout of the standard plug-in, so that either can take over from the other. All changes happen under a
//! lock on the directory, and a lease appears by rename, complete or not at all.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::Deserialize;

use super::Handlers;
use super::call::Call;
use crate::error::{CniError, code};
use crate::result::{AddResult, Dns, IpConfig, Route, version_at_least};
use api::cidr::{self, Cidr};

pub(super) const HANDLERS: Handlers = Handlers { load: |call| Plan::load(call).map(drop), add, check, del, gc, status };

const DATA_DIR: &str = "/var/lib/cni/networks";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    ipam: Option<Config>,
    #[serde(default)]
    runtime_config: RuntimeConfig,
    #[serde(default)]
    args: Args,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    #[serde(flatten)]
    range: Option<RangeConfig>,
    #[serde(default)]
    ranges: Vec<Vec<RangeConfig>>,
    #[serde(default)]
    routes: Vec<Route>,
    #[serde(default)]
    data_dir: String,
    #[serde(default)]
    resolv_conf: String,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RangeConfig {
    subnet: Cidr,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    ip_ranges: Vec<Vec<RangeConfig>>,
    ips: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Args {
    cni: RuntimeConfig,
}

/// A range to take addresses from, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
struct Range {
    subnet: Cidr,
    start: IpAddr,
    end: IpAddr,
    gateway: IpAddr,
}

impl Range {
    fn new(config: &RangeConfig) -> Result<Self, String> {
        let subnet = config.subnet;
        let bits = if subnet.is_v6() { 128 } else { 32 };
        if subnet.prefix > bits - 2 {
            return Err(format!("Network {subnet} too small to allocate from"));
        }
        if subnet != subnet.network() {
            return Err(format!(
                "Network has host bits set. For a subnet mask of length {} the network address is {}",
                subnet.prefix,
                subnet.network().addr
            ));
        }
        let first = cidr::next(subnet.addr).ok_or("Network has no addresses")?;
        let last = match subnet.is_v6() {
            true => subnet.last(),
            false => cidr::previous(subnet.last()).ok_or("Network has no addresses")?,
        };
        let inside = |name: &str, addr: Option<IpAddr>, default: IpAddr| match addr {
            Some(addr) if !subnet.contains(addr) => Err(format!("{name} {addr} not in network {subnet}")),
            addr => Ok(addr.unwrap_or(default)),
        };
        let start = inside("RangeStart", config.range_start, first)?;
        let end = inside("RangeEnd", config.range_end, last)?;
        if start > end {
            return Err(format!("RangeStart {start} is after RangeEnd {end}"));
        }
        Ok(Self { subnet, start, end, gateway: config.gateway.unwrap_or(first) })
    }

    fn contains(&self, addr: IpAddr) -> bool {
        self.subnet.contains(addr) && self.start <= addr && addr <= self.end
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.subnet.is_v6() == other.subnet.is_v6() && self.start <= other.end && other.start <= self.end
    }
}

/// Everything `ipam` says, checked.
struct Plan {
    sets: Vec<Vec<Range>>,
    requested: Vec<IpAddr>,
    routes: Vec<Route>,
    dir: PathBuf,
    resolv_conf: String,
}

impl Plan {
    fn load(call: &Call) -> Result<Self, CniError> {
        let network: Network = call.config()?;
        let config = network.ipam.ok_or_else(|| CniError::invalid_config("IPAM config missing 'ipam' key"))?;
        let mut sets = network.runtime_config.ip_ranges;
        sets.extend(config.range.map(|range| vec![range]));
        sets.extend(config.ranges);
        if sets.is_empty() {
            return Err(CniError::invalid_config("no IP ranges specified"));
        }
        let mut checked: Vec<Vec<Range>> = Vec::new();
        for (i, set) in sets.iter().enumerate() {
            let invalid = |cause: String| CniError::invalid_config(format!("invalid range set {i}: {cause}"));
            let set: Vec<Range> = set.iter().map(Range::new).collect::<Result<_, _>>().map_err(invalid)?;
            let Some(first) = set.first() else {
                return Err(invalid("empty range set".into()));
            };
            if set.iter().any(|range| range.subnet.is_v6() != first.subnet.is_v6()) {
                return Err(invalid("mixed address families".into()));
            }
            for (a, one) in set.iter().enumerate() {
                if let Some(b) = set.iter().skip(a + 1).position(|other| one.overlaps(other)) {
                    return Err(invalid(format!("subnets {a} and {} overlap", a + 1 + b)));
                }
            }
            checked.push(set);
        }
        for (i, one) in checked.iter().enumerate() {
            for (j, other) in checked.iter().enumerate().skip(i + 1) {
                if one.iter().any(|range| other.iter().any(|r| range.overlaps(r))) {
                    return Err(CniError::invalid_config(format!("range set {i} overlaps with {j}")));
                }
            }
        }
        let families = |v6: bool| checked.iter().filter(|set| set[0].subnet.is_v6() == v6).count();
        if !version_at_least(&call.version, "0.3.0") && (families(false) > 1 || families(true) > 1) {
            return Err(CniError::invalid_config(format!(
                "CNI version {} does not support more than 1 address per family",
                call.version
            )));
        }
        let data_dir = if config.data_dir.is_empty() { DATA_DIR } else { &config.data_dir };
        let texts = call.arg("IP").into_iter().map(str::to_owned);
        let texts = texts.chain(network.args.cni.ips).chain(network.runtime_config.ips);
        let requested = texts
            .map(|text| {
                let addr = text.split('/').next().unwrap_or_default();
                addr.parse().map_err(|_| CniError::invalid_config(format!("cannot understand ip: {text}")))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            sets: checked,
            requested,
            routes: config.routes,
            dir: Path::new(data_dir).join(&call.network),
            resolv_conf: config.resolv_conf,
        })
    }
}

fn add(call: &Call) -> Result<AddResult, CniError> {
    let mut plan = Plan::load(call)?;
    let mut result = AddResult { routes: std::mem::take(&mut plan.routes), ..AddResult::default() };
    if !plan.resolv_conf.is_empty() {
        let text = fs::read_to_string(&plan.resolv_conf)
            .map_err(|error| CniError::new(code::IO_FAILURE, format!("{}: {error}", plan.resolv_conf), ""))?;
        result.dns = parse_resolv_conf(&text);
    }
    let leases = Leases::lock(&plan.dir).map_err(store_failed)?;
    match allocate(&leases, &plan, call) {
        Ok(ips) => {
            result.ips = ips;
            Ok(result)
        }
        Err(error) => {
            // All or nothing: the caller never learns of a part. A duplicate keeps the lease it already had.
            if !error.msg.contains("duplicate allocation") {
                let _ = leases.release(&call.container_id, &call.ifname);
            }
            Err(error)
        }
    }
}

fn allocate(leases: &Leases, plan: &Plan, call: &Call) -> Result<Vec<IpConfig>, CniError> {
    let mut requested = plan.requested.clone();
    let held = leases.held_by(&call.container_id, &call.ifname).map_err(store_failed)?;
    let mut ips = Vec::new();
    for (i, set) in plan.sets.iter().enumerate() {
        let failed =
            |cause: &dyn std::fmt::Display| CniError::internal(format!("failed to allocate for range {i}: {cause}"));
        let wanted = requested.iter().position(|addr| set.iter().any(|range| range.contains(*addr)));
        let wanted = wanted.map(|position| requested.swap_remove(position));
        if let Some(addr) = held.iter().find(|addr| set.iter().any(|range| range.contains(**addr))) {
            return Err(failed(&format_args!(
                "{addr} has been allocated to {}, duplicate allocation is not allowed",
                call.container_id
            )));
        }
        let last = leases.last_reserved(i);
        let (range, addr) = choose(set, wanted, last, |addr| leases.is_leased(addr)).map_err(|cause| failed(&cause))?;
        leases.reserve(addr, &call.container_id, &call.ifname, i).map_err(store_failed)?;
        ips.push(IpConfig {
            interface: None,
            address: Cidr::new(addr, range.subnet.prefix),
            gateway: Some(range.gateway),
        });
    }
    match requested.is_empty() {
        true => Ok(ips),
        false => {
            let rest: Vec<String> = requested.iter().map(IpAddr::to_string).collect();
            Err(CniError::internal(format!("failed to allocate all requested IPs: {}", rest.join(" "))))
        }
    }
}

/// Why no address can be leased, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum NoAddress {
    #[error("not in range")]
    OutOfRange,
    #[error("requested ip {0} is subnet's gateway")]
    Gateway(IpAddr),
    #[error("requested IP address {wanted} is not available in range set {set}")]
    Taken { wanted: IpAddr, set: String },
    #[error("no IP addresses available in range set: {0}")]
    Exhausted(String),
}

/// Which address to lease: the wanted one, or the next free one after the last reserved, round the set, so that an address
/// rests as long as possible before it is used again.
fn choose(
    set: &[Range],
    wanted: Option<IpAddr>,
    last: Option<IpAddr>,
    is_leased: impl Fn(IpAddr) -> bool,
) -> Result<(&Range, IpAddr), NoAddress> {
    if let Some(wanted) = wanted {
        let range = set.iter().find(|range| range.contains(wanted)).ok_or(NoAddress::OutOfRange)?;
        if wanted == range.gateway {
            return Err(NoAddress::Gateway(wanted));
        }
        if is_leased(wanted) {
            return Err(NoAddress::Taken { wanted, set: text(set) });
        }
        return Ok((range, wanted));
    }
    let (mut at, mut addr) = last
        .and_then(|last| Some((set.iter().position(|range| range.contains(last))?, last)))
        .map(|(at, last)| advance(set, at, last))
        .unwrap_or((0, set[0].start));
    let start = addr;
    loop {
        if addr != set[at].gateway && !is_leased(addr) {
            return Ok((&set[at], addr));
        }
        (at, addr) = advance(set, at, addr);
        if addr == start {
            return Err(NoAddress::Exhausted(text(set)));
        }
    }
}

fn advance(set: &[Range], at: usize, addr: IpAddr) -> (usize, IpAddr) {
    match cidr::next(addr).filter(|_| addr < set[at].end) {
        Some(next) => (at, next),
        None => {
            let at = (at + 1) % set.len();
            (at, set[at].start)
        }
    }
}

fn text(set: &[Range]) -> String {
    let ranges: Vec<String> = set.iter().map(|range| format!("{}-{}", range.start, range.end)).collect();
    ranges.join(",")
}

fn check(call: &Call) -> Result<(), CniError> {
    let plan = Plan::load(call)?;
    let leases = Leases::lock(&plan.dir).map_err(store_failed)?;
    match leases.held_by(&call.container_id, &call.ifname).map_err(store_failed)?.is_empty() {
        false => Ok(()),
        true => Err(CniError::internal(format!(
            "host-local: Failed to find address added by container {}",
            call.container_id
        ))),
    }
}

fn del(call: &Call) -> Result<(), CniError> {
    let plan = Plan::load(call)?;
    let leases = Leases::lock(&plan.dir).map_err(store_failed)?;
    leases.release(&call.container_id, &call.ifname).map_err(store_failed)
}

fn gc(call: &Call) -> Result<(), CniError> {
    let plan = Plan::load(call)?;
    let keep = call.valid_attachments();
    let leases = Leases::lock(&plan.dir).map_err(store_failed)?;
    leases
        .retain(|id, ifname| keep.iter().any(|(k, i)| k == id && (ifname.is_empty() || i == ifname)))
        .map_err(store_failed)
}

/// Ready while at least one address of every set is free.
fn status(call: &Call) -> Result<(), CniError> {
    let plan = Plan::load(call)?;
    let leases = Leases::lock(&plan.dir).map_err(store_failed)?;
    for set in &plan.sets {
        choose(set, None, None, |addr| leases.is_leased(addr))
            .map_err(|cause| CniError::new(code::PLUGIN_NOT_AVAILABLE, cause.to_string(), ""))?;
    }
    Ok(())
}

fn store_failed(error: io::Error) -> CniError {
    CniError::new(code::IO_FAILURE, format!("host-local: leases: {error}"), "")
}

/// The lease directory of one network, locked for as long as this lives.
struct Leases {
    dir: PathBuf,
    _lock: Flock<fs::File>,
}

impl Leases {
    fn lock(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(dir.join("lock"))?;
        let lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))?;
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }

    /// An empty file is what a crash of the standard plug-in leaves between creating and writing: it leases nothing.
    fn is_leased(&self, addr: IpAddr) -> bool {
        fs::metadata(self.dir.join(addr.to_string())).is_ok_and(|meta| meta.len() > 0)
    }

    fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        fs::read_to_string(self.dir.join(format!("last_reserved_ip.{set}"))).ok()?.trim().parse().ok()
    }

    fn reserve(&self, addr: IpAddr, id: &str, ifname: &str, set: usize) -> io::Result<()> {
        self.write(&addr.to_string(), &format!("{id}\r\n{ifname}"))?;
        // Only a hint for round-robin: losing it is harmless.
        self.write(&format!("last_reserved_ip.{set}"), &addr.to_string())
    }

    fn write(&self, name: &str, content: &str) -> io::Result<()> {
        use std::os::unix::fs::OpenOptionsExt;
        let aside = self.dir.join(".new");
        let mut file = fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&aside)?;
        file.write_all(content.as_bytes())?;
        fs::rename(aside, self.dir.join(name))
    }

    fn held_by(&self, id: &str, ifname: &str) -> io::Result<Vec<IpAddr>> {
        let leases = self.all()?.into_iter();
        Ok(leases.filter(|(_, owner)| is_owner(owner, id, ifname)).map(|(addr, _)| addr).collect())
    }

    fn release(&self, id: &str, ifname: &str) -> io::Result<()> {
        for addr in self.held_by(id, ifname)? {
            match fs::remove_file(self.dir.join(addr.to_string())) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn retain(&self, keep: impl Fn(&str, &str) -> bool) -> io::Result<()> {
        for (addr, owner) in self.all()? {
            let (id, ifname) = owner.split_once("\r\n").unwrap_or((&owner, ""));
            if !keep(id.trim(), ifname.trim()) {
                fs::remove_file(self.dir.join(addr.to_string()))?;
            }
        }
        Ok(())
    }

    fn all(&self) -> io::Result<Vec<(IpAddr, String)>> {
        let mut leases = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let Some(addr) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match fs::read_to_string(entry.path()) {
                Ok(owner) => leases.push((addr, owner.trim().to_owned())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(leases)
    }
}

/// Old leases name the container only.
fn is_owner(owner: &str, id: &str, ifname: &str) -> bool {
    match owner.split_once("\r\n") {
        Some((owner_id, owner_if)) => owner_id == id && owner_if == ifname,
        None => owner == id,
    }
}

fn parse_resolv_conf(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with(['#', ';']) {
            continue;
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("nameserver") => dns.nameservers.extend(words.next()),
            Some("domain") => dns.domain = words.next().unwrap_or_default(),
            Some("search") => dns.search = words.collect(),
            Some("options") => dns.options.extend(words),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn call(id: &str, ipam: Value, extra: Value) -> Call {
        let mut config = json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": ipam});
        for (key, value) in extra.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        let env = |name: &str| match name {
            "CNI_CONTAINERID" => id.to_owned(),
            "CNI_NETNS" => "/ns".into(),
            "CNI_IFNAME" => "eth0".into(),
            _ => String::new(),
        };
        Call::read("ADD", env, config.to_string().as_bytes()).unwrap()
    }

    fn addresses(result: &AddResult) -> Vec<String> {
        result.ips.iter().map(|ip| ip.address.to_string()).collect()
    }

    #[test]
    fn leases_round_robin_and_are_released() {
        let dir = tempfile::tempdir().unwrap();
        let ipam = json!({"type": "host-local", "dataDir": dir.path(),
            "ranges": [[{"subnet": "10.1.2.0/29"}], [{"subnet": "fd00::/64"}]], "routes": [{"dst": "0.0.0.0/0"}]});
        let lease = |id: &str| add(&call(id, ipam.clone(), json!({})));
        assert_eq!(addresses(&lease("a").unwrap()), ["10.1.2.2/29", "fd00::2/64"]);
        assert_eq!(addresses(&lease("b").unwrap()), ["10.1.2.3/29", "fd00::3/64"]);
        assert_eq!(fs::read_to_string(dir.path().join("net/10.1.2.2")).unwrap(), "a\r\neth0");
        assert!(lease("a").unwrap_err().msg.contains("duplicate allocation is not allowed"));
        del(&call("a", ipam.clone(), json!({}))).unwrap();
        del(&call("a", ipam.clone(), json!({}))).unwrap();
        assert!(!dir.path().join("net/10.1.2.2").exists());
        for (id, address) in [("c", "10.1.2.4/29"), ("d", "10.1.2.5/29"), ("e", "10.1.2.6/29"), ("f", "10.1.2.2/29")] {
            assert_eq!(addresses(&lease(id).unwrap())[0], address);
        }
        let full = lease("g").unwrap_err();
        assert_eq!(
            full.msg,
            "failed to allocate for range 0: no IP addresses available in range set: 10.1.2.1-10.1.2.6"
        );
        assert_eq!(status(&call("g", ipam.clone(), json!({}))).unwrap_err().code, code::PLUGIN_NOT_AVAILABLE);
        let keep = json!({"cni.dev/valid-attachments": [{"containerID": "b", "ifname": "eth0"}]});
        gc(&call("x", ipam.clone(), keep)).unwrap();
        let left: Vec<IpAddr> =
            Leases::lock(&dir.path().join("net")).unwrap().all().unwrap().into_iter().map(|l| l.0).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn requested_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let ipam = json!({"type": "host-local", "dataDir": dir.path(), "subnet": "10.1.2.0/24"});
        let ask = |id: &str, ip: &str| add(&call(id, ipam.clone(), json!({"runtimeConfig": {"ips": [ip]}})));
        assert_eq!(addresses(&ask("a", "10.1.2.77").unwrap()), ["10.1.2.77/24"]);
        for (ip, message) in [
            ("10.1.2.77", "not available"),
            ("10.1.2.1", "is subnet's gateway"),
            ("10.9.9.9", "failed to allocate all requested IPs: 10.9.9.9"),
            ("x", "cannot understand ip"),
        ] {
            let error = ask("b", ip).unwrap_err();
            assert!(error.msg.contains(message), "{error}");
        }
        assert!(Leases::lock(&dir.path().join("net")).unwrap().held_by("b", "eth0").unwrap().is_empty());
    }

    #[test]
    fn a_torn_lease_is_free() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("net")).unwrap();
        fs::write(dir.path().join("net/10.1.2.2"), "").unwrap();
        let ipam = json!({"type": "host-local", "dataDir": dir.path(), "subnet": "10.1.2.0/24"});
        assert_eq!(addresses(&add(&call("a", ipam, json!({}))).unwrap()), ["10.1.2.2/24"]);
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for (ipam, message) in [
            (json!({"type": "host-local"}), "no IP ranges specified"),
            (json!({"subnet": "10.0.0.0/31"}), "too small"),
            (json!({"subnet": "10.0.0.5/24"}), "host bits set"),
            (json!({"ranges": [[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.1.1"}]]}), "RangeStart"),
            (
                json!({"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.0.0.0/25"}]]}),
                "range set 0 overlaps with 1",
            ),
            (json!({"ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]]}), "mixed address families"),
            (json!({"ranges": [[]]}), "empty"),
        ] {
            let error = Plan::load(&call("a", ipam, json!({}))).err().unwrap();
            assert!(error.msg.contains(message), "{error}");
        }
    }

    #[test]
    fn concurrent_callers_never_share_an_address() {
        let dir = tempfile::tempdir().unwrap();
        let ipam = json!({"type": "host-local", "dataDir": dir.path(), "subnet": "10.1.0.0/16"});
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let ipam = ipam.clone();
                std::thread::spawn(move || -> Vec<String> {
                    let lease = |i: u32| add(&call(&format!("c{thread}-{i}"), ipam.clone(), json!({}))).unwrap();
                    (0..20).flat_map(|i| addresses(&lease(i))).collect()
                })
            })
            .collect();
        let mut all: Vec<String> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 160);
    }

    #[test]
    fn reads_resolv_conf() {
        let dns = parse_resolv_conf("# x\nnameserver 1.1.1.1\nsearch a b\noptions ndots:5\ndomain d\n");
        assert_eq!((dns.nameservers.len(), dns.search.len(), dns.options.len(), dns.domain.as_str()), (1, 2, 1, "d"));
    }
}
