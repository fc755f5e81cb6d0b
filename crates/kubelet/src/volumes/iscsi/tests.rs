//! Disks of a machine that has no iSCSI: what it is asked to run is recorded, and its `/sys` and `/dev` are directories that
//! change as a kernel would change them.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::machine::Ran;
use super::*;

const SHOWN: &str = "iface.iscsi_ifacename = default\niface.transport_name = tcp\niface.mtu = 9000\n";

#[derive(Default)]
struct Recorded {
    root: PathBuf,
    calls: Mutex<Vec<String>>,
    /// Calls that contain the text end with this code.
    failing: Mutex<Vec<(&'static str, i32)>>,
    is_missing: bool,
    /// A login is followed by no device.
    is_blind: bool,
    /// What every device is a link to.
    device: Option<PathBuf>,
    sessions: AtomicU32,
}

impl Recorded {
    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock())
    }

    /// What the kernel shows after a login.
    fn log_in(&self, portal: &str, iqn: &str) {
        let number = self.sessions.fetch_add(1, Ordering::SeqCst);
        let (address, port) = portal.rsplit_once(':').unwrap();
        let session = self.root.join(format!("sys/class/iscsi_host/host{number}/device/session{number}"));
        let put = |path: PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put(session.join(format!("iscsi_session/session{number}/targetname")), &format!("{iqn}\n"));
        let connection = format!("connection{number}:0");
        let connection = session.join(&connection).join("iscsi_connection").join(&connection);
        for (file, text) in
            [("address", address), ("port", port), ("persistent_address", address), ("persistent_port", port)]
        {
            put(connection.join(file), &format!("{text}\n"));
        }
        put(self.root.join(format!("sys/class/scsi_host/host{number}/scan")), "");
        for lun in if self.is_blind { 0..0 } else { 0..2 } {
            let device = format!("sd{number}{lun}");
            put(session.join(format!("target{number}:0:0/{number}:0:0:{lun}/block")).join(&device), "");
            put(self.root.join("sys/block").join(&device).join("device/delete"), "");
            let path = self.root.join("dev").join(&device);
            match &self.device {
                Some(real) => {
                    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                    std::os::unix::fs::symlink(real, &path).unwrap();
                }
                None => put(path.clone(), ""),
            }
            let link = self.root.join(format!("dev/disk/by-path/ip-{portal}-iscsi-{iqn}-lun-{lun}"));
            std::fs::create_dir_all(link.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(path, link).unwrap();
        }
    }

    fn deleted(&self, device: &str) -> bool {
        let path = self.root.join("sys/block").join(device).join("device/delete");
        std::fs::read_to_string(path).unwrap() == "1"
    }
}

impl Machine for Recorded {
    async fn run(&self, program: &'static str, arguments: Vec<String>) -> Result<Ran, IscsiError> {
        if self.is_missing {
            return Err(IscsiError::Missing(program));
        }
        let line = format!("{program} {}", arguments.join(" "));
        self.calls.lock().push(line.clone());
        let failing = self.failing.lock().iter().find(|(part, _)| line.contains(part)).map(|(_, code)| *code);
        if let Some(code) = failing {
            return Ok(Ran { code: Some(code), output: "iscsiadm: no\n".to_owned() });
        }
        let value = |name: &str| arguments.iter().skip_while(|word| *word != name).nth(1).unwrap().clone();
        if line.ends_with("--login") {
            self.log_in(&value("-p"), &value("-T"));
        }
        let output = if line.ends_with("-o show") { SHOWN } else { "" };
        Ok(Ran { code: Some(0), output: output.to_owned() })
    }

    fn root(&self) -> &Path {
        &self.root
    }
}

struct Node {
    _dir: tempfile::TempDir,
    iscsi: Arc<Iscsi<Recorded>>,
    tasks: TaskTracker,
}

impl Node {
    fn new(machine: Recorded) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let machine = Recorded { root: dir.path().join("machine"), ..machine };
        let tasks = TaskTracker::new();
        let iscsi = started(machine, dir.path().join("kubelet"), tasks.clone());
        Node { _dir: dir, iscsi, tasks }
    }

    async fn set_up(&self, uid: &str, name: &str, source: Value, is_block: bool) -> Result<Mounted, VolumeError> {
        let source: ISCSIPersistentVolumeSource = serde_json::from_value(source).unwrap();
        let request = Request::new(uid, name, &source, false).with(&[], is_block);
        let secret = BTreeMap::from([
            ("node.session.auth.username".to_owned(), "me".to_owned()),
            ("node.session.auth.password".to_owned(), "s3cret".to_owned()),
            ("discovery.sendtargets.auth.username".to_owned(), "finder".to_owned()),
        ]);
        // As the controller that lets every node have every disk.
        self.iscsi.in_use.keep(request.unique_name(), uid);
        self.iscsi.set_up(request, async { Ok(()) }, async move { Ok(secret) }).await
    }

    /// Ends a pod and all that follows from it.
    async fn end(&self, uid: &str) -> bool {
        self.iscsi.in_use.release_all(uid);
        self.iscsi.tear_down(uid).await.unwrap();
        let is_clean = self.iscsi.release_unused().await;
        self.settle().await;
        is_clean
    }

    async fn settle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }

    fn calls(&self) -> Vec<String> {
        self.iscsi.machine.calls()
    }
}

/// A kubelet's disks after its start.
fn started(machine: Recorded, root: PathBuf, tasks: TaskTracker) -> Arc<Iscsi<Recorded>> {
    let in_use = Arc::new(InUse::new([], Arc::default()));
    let stop = CancellationToken::new();
    Iscsi::on(machine, Parts { root, in_use, call_timeout: Duration::from_secs(600), tasks, stop })
}

fn source(lun: u32) -> Value {
    json!({"targetPortal": "10.0.0.1", "iqn": "iqn.2003-01.org.x:a", "lun": lun})
}

#[tokio::test]
async fn a_session_is_shared_and_ends_after_its_last_disk() {
    let node = Node::new(Recorded::default());
    let first = node.set_up("a", "pv-0", source(0), true).await.unwrap();
    let device = node.iscsi.machine.root.join("dev/sd00").canonicalize().unwrap();
    assert_eq!(first, Mounted::Device { path: device, read_only: false });
    let discovery = "iscsiadm -m discoverydb -t sendtargets -p 10.0.0.1:3260 -I default";
    let target = "iscsiadm -m node -p 10.0.0.1:3260 -T iqn.2003-01.org.x:a -I default";
    let expected = [
        "iscsiadm -m iface -I default -o show".to_owned(),
        format!("{discovery} -o new"),
        format!("{discovery} --discover"),
        format!("{target} -o update -n node.session.scan -v manual"),
        format!("{target} --login"),
        format!("{target} -o update -n node.startup -v manual"),
    ];
    assert_eq!(node.calls(), expected);
    let scan = node.iscsi.machine.root.join("sys/class/scsi_host/host0/scan");
    assert_eq!(std::fs::read_to_string(scan).unwrap(), "0 0 0", "no other disk is looked for");

    // What a pod has is not asked for again, and a session that is there is used.
    node.set_up("a", "pv-0", source(0), true).await.unwrap();
    assert_eq!(node.calls(), [""; 0]);
    node.set_up("b", "pv-1", source(1), true).await.unwrap();
    assert_eq!(node.calls(), ["iscsiadm -m iface -I default -o show"]);

    assert!(!node.end("a").await);
    assert_eq!(node.calls(), [""; 0], "another disk needs the session");
    let machine = &node.iscsi.machine;
    assert!(machine.deleted("sd00") && !machine.deleted("sd01"));
    node.end("b").await;
    assert_eq!(node.calls(), [format!("{target} --logout"), format!("{target} -o delete")]);
    assert!(machine.deleted("sd01"));
    assert!(node.iscsi.release_unused().await, "nothing is left");
}

#[tokio::test]
async fn a_kubelet_that_starts_lets_go_what_an_earlier_one_left() {
    let node = Node::new(Recorded::default());
    node.set_up("a", "pv", source(0), true).await.unwrap();
    // Another kubelet knows what is on disk.
    let machine = Recorded { root: node.iscsi.machine.root.clone(), ..Recorded::default() };
    let later = started(machine, node.iscsi.root.clone(), node.tasks.clone());
    assert_eq!(later.in_use.names(), ["kubernetes.io/iscsi/10.0.0.1:iqn.2003-01.org.x:a:0"]);
    assert!(later.release_unused().await, "a pod uses it");
    // A pod whose volumes are those of a kubelet that wrote nothing down: who uses what is not known.
    let unknown = later.target("b", "data");
    std::fs::create_dir_all(&unknown).unwrap();
    std::fs::remove_dir_all(later.pod("a")).unwrap();
    assert!(later.release_unused().await, "there is nothing to do until that is known");
    node.settle().await;
    assert_eq!(later.machine.calls(), [""; 0], "nothing is let go meanwhile");
    std::fs::remove_dir_all(later.pod("b")).unwrap();
    // A logout of what there is no session with is done.
    later.machine.failing.lock().extend([("--logout", 21), ("-o delete", 2)]);
    assert!(!later.release_unused().await);
    node.settle().await;
    assert!(later.release_unused().await);
    assert_eq!(later.in_use.names(), [""; 0], "nobody can have it here any more");
    let machine = Recorded { root: node.iscsi.machine.root.clone(), ..Recorded::default() };
    assert_eq!(started(machine, node.iscsi.root.clone(), node.tasks.clone()).in_use.names(), [""; 0]);
    // One that fails is tried again.
    node.set_up("c", "pv", source(0), true).await.unwrap();
    std::fs::remove_dir_all(later.pod("c")).unwrap();
    *later.machine.failing.lock() = vec![("--logout", 8)];
    for _ in 0..2 {
        later.machine.calls();
        assert!(!later.release_unused().await);
        node.settle().await;
        assert_eq!(later.machine.calls().len(), 1);
    }
    later.machine.failing.lock().clear();
    later.release_unused().await;
    node.settle().await;
    assert!(later.release_unused().await);
}

/// Which disk the pod has is not known then: none is let go, and pods that need others go on.
#[tokio::test]
async fn a_record_that_cannot_be_read_holds_up_its_own_pod() {
    let node = Node::new(Recorded::default());
    node.set_up("a", "pv-0", source(0), true).await.unwrap();
    node.set_up("b", "pv-1", source(1), true).await.unwrap();
    let record = node.iscsi.pod_record("a", "pv-0");
    let whole = std::fs::read(&record).unwrap();
    std::fs::write(&record, "{").unwrap();
    let failed = node.set_up("a", "pv-0", source(0), true).await.unwrap_err().to_string();
    assert!(failed.contains(&record.display().to_string()), "{failed}");
    assert!(node.iscsi.tear_down("a").await.is_err() && record.exists());
    node.calls();
    assert!(node.end("b").await, "nobody looks more often for what is mended by hand");
    let machine = &node.iscsi.machine;
    assert!(!machine.deleted("sd00") && !machine.deleted("sd01"));
    let unread = node.iscsi.unread();
    assert!(unread.len() == 1 && unread.iter().all(|why| why.contains(&record.display().to_string())), "{unread:?}");
    node.set_up("c", "pv-1", source(1), true).await.unwrap();
    std::fs::write(&record, whole).unwrap();
    node.end("c").await;
    assert!(!machine.deleted("sd00") && machine.deleted("sd01"));
    assert!(node.iscsi.release_unused().await && node.iscsi.unread().is_empty());
}

#[tokio::test]
async fn a_damaged_record_of_a_disk_in_use_keeps_no_kubelet_from_starting() {
    let node = Node::new(Recorded::default());
    node.set_up("a", "pv", source(0), true).await.unwrap();
    let disk: ISCSIPersistentVolumeSource = serde_json::from_value(source(0)).unwrap();
    let used = Request::new("a", "pv", &disk, false).with(&[], true).used();
    let record = node.iscsi.in_use_record(&used.place());
    let whole = std::fs::read(&record).unwrap();
    std::fs::write(&record, "").unwrap();
    let machine = Recorded { root: node.iscsi.machine.root.clone(), ..Recorded::default() };
    let later = started(machine, node.iscsi.root.clone(), node.tasks.clone());
    assert_eq!(later.in_use.to_tell(), None, "nobody hears that it is not used any more");
    let name = "kubernetes.io/iscsi/10.0.0.1:iqn.2003-01.org.x:a:0".to_owned();
    later.in_use.seen(std::slice::from_ref(&name));
    for _ in 0..2 {
        assert!(later.release_unused().await);
        assert_eq!((later.in_use.to_tell(), later.unread().len()), (Some(vec![name.clone()]), 1));
    }
    std::fs::write(&record, whole).unwrap();
    assert!(later.release_unused().await, "a pod uses it");
    assert_eq!((later.in_use.names(), later.unread().len()), (vec![name], 0));
    let place = holder(&used.place());
    later.in_use.release_all(&place);
    assert!(later.in_use.names().is_empty(), "it is held as any other");
}

/// Its record was mended before the API said which disks the node had in use.
#[tokio::test]
async fn a_disk_is_not_in_use_for_good_because_its_record_was_damaged() {
    let node = Node::new(Recorded::default());
    let record = node.iscsi.plugin().join(IN_USE).join("disk.json");
    std::fs::create_dir_all(record.parent().unwrap()).unwrap();
    std::fs::write(&record, "").unwrap();
    let machine = Recorded { root: node.iscsi.machine.root.clone(), ..Recorded::default() };
    let later = started(machine, node.iscsi.root.clone(), node.tasks.clone());
    std::fs::remove_file(&record).unwrap();
    assert!(later.release_unused().await);
    later.in_use.seen(&["kubernetes.io/iscsi/10.0.0.1:iqn.2003-01.org.x:a:0".to_owned()]);
    assert!(later.release_unused().await);
    assert_eq!(later.in_use.to_tell(), Some(Vec::new()));
}

/// What a pod's directory shows says which disk it has.
#[test]
fn disks_that_a_pod_without_a_record_does_not_have_are_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let plugin = root.join("plugins/kubernetes.io/iscsi");
    let place = |lun: u32| plugin.join(format!("iface-default/10.0.0.1:3260-iqn.2003-01.org.x:a-lun-{lun}"));
    let record = root.join("pods/a/plugins").join(PLUGIN).join("data.json");
    let target = root.join("pods/a/volumes").join(PLUGIN).join("data");
    for dir in [&place(0), &place(1), &target, &record.parent().unwrap().to_path_buf()] {
        std::fs::create_dir_all(dir).unwrap();
    }
    std::fs::write(&record, "{").unwrap();
    let luns =
        || -> Vec<String> { unused(&root, &plugin).unwrap().disks.into_iter().map(|used| used.disk.lun).collect() };
    assert_eq!(luns(), [""; 0], "it may be any");
    mounts::tmpfs(&Linux, &place(0), None).unwrap();
    Linux.mount(Some(&place(0)), &target, None, MsFlags::MS_BIND, None).unwrap();
    let found = (luns(), unused(&root, &plugin).unwrap().unknown.len());
    for mounted in [&target, &place(0)] {
        Linux.unmount(mounted, MntFlags::empty()).unwrap();
    }
    assert_eq!(found, (vec!["1".to_owned()], 1));
}

#[tokio::test]
async fn targets_are_told_who_asks_and_events_are_not() {
    let node = Node::new(Recorded { failing: Mutex::new(vec![("--login", 24)]), ..Recorded::default() });
    let mut source = source(0);
    source["chapAuthSession"] = json!(true);
    source["chapAuthDiscovery"] = json!(true);
    let failed = node.set_up("a", "pv", source, true).await.unwrap_err();
    let expected = "MountVolume.WaitForAttach failed for volume \"pv\" : failed to get any path for iscsi disk, last err seen:\n\
        iscsi: failed to attach disk: login to iqn.2003-01.org.x:a over 10.0.0.1:3260: exit status 24: iscsiadm: no";
    assert_eq!(failed.to_string(), expected);
    let calls = node.calls();
    let has = |end: &str| calls.iter().any(|call| call.ends_with(end));
    assert!(has("-o update -n discovery.sendtargets.auth.authmethod -v CHAP"), "{calls:?}");
    assert!(has("-o update -n discovery.sendtargets.auth.username -v finder"), "{calls:?}");
    assert!(has("-o update -n node.session.auth.authmethod -v CHAP"), "{calls:?}");
    assert!(has("-o update -n node.session.auth.password -v s3cret"), "{calls:?}");
    assert!(!calls.iter().any(|call| call.contains("password_in")), "{calls:?}");
    assert!(has("-T iqn.2003-01.org.x:a -I default -o delete"), "its record goes: {calls:?}");
    // A password that iscsiadm does not take is in no message.
    *node.iscsi.machine.failing.lock() = vec![("auth.password", 7)];
    let mut source = self::source(0);
    source["chapAuthSession"] = json!(true);
    let failed = node.set_up("a", "pv", source, true).await.unwrap_err().to_string();
    assert!(failed.contains("key \"node.session.auth.password\"") && !failed.contains("s3cret"), "{failed}");
}

#[tokio::test]
async fn a_node_without_the_programs_says_what_it_needs() {
    let node = Node::new(Recorded { is_missing: true, ..Recorded::default() });
    for (pod, is_block) in [("a", true), ("b", false)] {
        let failed = node.set_up(pod, "pv", source(0), is_block).await.unwrap_err();
        let expected = "MountVolume.WaitForAttach failed for volume \"pv\" : exec: \"iscsiadm\": executable file not found in \
            $PATH: this node needs the package open-iscsi for iSCSI volumes";
        assert_eq!((failed.to_string().as_str(), failed.reason()), (expected, "FailedMount"));
    }
}

#[tokio::test]
async fn the_real_programs_are_missed_or_run() {
    let ran = Host.run("no-such-program", Vec::new()).await.unwrap_err();
    assert!(matches!(ran, IscsiError::Missing("no-such-program")));
    let words = ["-c".to_owned(), "echo out; echo error >&2; exit 21".to_owned()];
    let ran = Host.run("sh", words.to_vec()).await.unwrap();
    assert_eq!((ran.code, ran.output.as_str()), (Some(21), "out\nerror\n"));
    // A program that says more than is kept is not held up.
    let words = ["-c".to_owned(), "yes | head -c 1000000".to_owned()];
    let ran = Host.run("sh", words.to_vec()).await.unwrap();
    assert_eq!((ran.code, ran.output.len()), (Some(0), 16 << 10));
}

#[tokio::test]
async fn paths_are_joined_and_a_dead_one_is_given_up() {
    let mut both = source(0);
    both["portals"] = json!(["10.0.0.2"]);
    let node = Node::new(Recorded::default());
    let joined = node.iscsi.machine.root.join("sys/block/dm-3/slaves");
    std::fs::create_dir_all(&joined).unwrap();
    std::fs::write(joined.join("sd10"), "").unwrap();
    let device = node.iscsi.machine.root.join("dev/dm-3");
    std::fs::create_dir_all(device.parent().unwrap()).unwrap();
    std::fs::write(&device, "").unwrap();
    let mounted = node.set_up("a", "pv", both.clone(), true).await.unwrap();
    assert_eq!(mounted, Mounted::Device { path: device.canonicalize().unwrap(), read_only: false });
    node.calls();
    node.end("a").await;
    let calls = node.calls();
    assert_eq!(calls[0], format!("multipath -f {}", device.display()));
    assert_eq!(calls.iter().filter(|call| call.ends_with("--logout")).count(), 2, "{calls:?}");

    tokio::time::pause();
    let node = Node::new(Recorded {
        failing: Mutex::new(vec![("10.0.0.2:3260 -I default --discover", 4)]),
        ..Recorded::default()
    });
    let mounted = node.set_up("a", "pv", both, true).await.unwrap();
    let device = node.iscsi.machine.root.join("dev/sd00").canonicalize().unwrap();
    assert_eq!(mounted, Mounted::Device { path: device, read_only: false });
    let tries = node.calls().iter().filter(|call| call.contains("10.0.0.2") && call.ends_with("--discover")).count();
    assert_eq!(tries, 5);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_never_comes_is_told() {
    let node = Node::new(Recorded { is_blind: true, ..Recorded::default() });
    let failed = node.set_up("a", "pv", source(0), true).await.unwrap_err().to_string();
    assert!(
        failed.ends_with("Timed out waiting for device of iqn.2003-01.org.x:a lun 0 over 10.0.0.1:3260 after 30s"),
        "{failed}"
    );
    node.calls();
    node.end("a").await;
    assert!(node.calls().iter().any(|call| call.ends_with("--logout")), "what was begun is undone");
}

#[tokio::test(start_paused = true)]
async fn security_portals_without_end_hold_up_a_target_for_a_while() {
    let node = Node::new(Recorded { is_blind: true, ..Recorded::default() });
    let mut source = source(0);
    source["portals"] = (2..100).map(|number| format!("10.0.0.{number}")).collect();
    let began = tokio::time::Instant::now();
    node.set_up("a", "pv", source, true).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(360), "{:?}", began.elapsed());
}

#[tokio::test]
async fn security_a_volume_does_not_take_the_place_of_another_of_its_name() {
    let node = Node::new(Recorded::default());
    node.set_up("a", "data", source(0), true).await.unwrap();
    let failed = node.set_up("a", "data", source(1), false).await.unwrap_err().to_string();
    assert!(failed.ends_with("another volume of the pod has this name, and another disk"), "{failed}");
    assert!(node.iscsi.release_unused().await, "the first disk is still known to be in use");
}

#[tokio::test]
async fn a_session_stays_while_a_disk_of_another_interface_uses_it() {
    let node = Node::new(Recorded::default());
    node.set_up("a", "pv-0", source(0), true).await.unwrap();
    let mut other = source(1);
    other["initiatorName"] = json!("iqn.2026-01.org.me");
    node.set_up("b", "pv-1", other, true).await.unwrap();
    assert!(!node.calls().iter().any(|call| call.contains("pv-1 --login")), "it uses the session that is there");
    node.end("a").await;
    let calls = node.calls();
    assert!(!calls.iter().any(|call| call.ends_with("--logout")), "{calls:?}");
}

#[tokio::test]
async fn security_a_link_to_a_device_of_another_session_is_not_followed() {
    let node = Node::new(Recorded::default());
    node.set_up("a", "pv", source(0), true).await.unwrap();
    let root = node.iscsi.machine.root.clone();
    let (portal, iqn) = ("10.0.0.1:3260", "iqn.2003-01.org.x:a");
    let found = || machine::device(&root, "tcp", portal, iqn, "0").unwrap();
    let link = found().unwrap();
    std::fs::remove_file(&link).unwrap();
    assert_eq!(found(), None);
    // The name has gone to a disk of another target.
    std::fs::write(root.join("dev/sdz"), "").unwrap();
    std::os::unix::fs::symlink(root.join("dev/sdz"), &link).unwrap();
    assert_eq!(found(), None);
}

#[tokio::test]
async fn an_initiator_of_its_own_has_an_interface_of_its_own() {
    let node = Node::new(Recorded::default());
    let mut source = source(0);
    source["initiatorName"] = json!("iqn.2026-01.org.me");
    node.set_up("a", "pv", source, true).await.unwrap();
    let iface = "iscsiadm -m iface -I 10.0.0.1:3260:pv";
    let expected = [
        "iscsiadm -m iface -I default -o show".to_owned(),
        format!("{iface} -o new"),
        format!("{iface} -o update -n iface.initiatorname -v iqn.2026-01.org.me"),
        format!("{iface} -o update -n iface.mtu -v 9000"),
        format!("{iface} -o update -n iface.transport_name -v tcp"),
    ];
    let calls = node.calls();
    assert_eq!(calls[..5], expected);
    assert!(calls[5..].iter().all(|call| call.contains("-I 10.0.0.1:3260:pv")), "{calls:?}");
    node.end("a").await;
    assert_eq!(node.calls().last(), Some(&format!("{iface} -o delete")));
}

#[tokio::test]
async fn a_disk_is_formatted_mounted_once_and_bound_for_every_pod() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let attached = std::process::Command::new("losetup").args(["-f", "--show"]).arg(&image).output();
    let Some(attached) = attached.ok().filter(|output| output.status.success()) else {
        eprintln!("skipped: no loop device can be had here");
        return;
    };
    let device = PathBuf::from(String::from_utf8(attached.stdout).unwrap().trim());
    let node = Node::new(Recorded { device: Some(device.clone()), ..Recorded::default() });
    for uid in ["a", "b", "b"] {
        node.set_up(uid, "pv", source(0), false).await.unwrap();
    }
    assert!(machine::is_held(&device), "what is mounted is held");
    let (of_a, of_b) = (node.iscsi.target("a", "pv"), node.iscsi.target("b", "pv"));
    std::fs::write(of_a.join("file"), "x").unwrap();
    assert_eq!(std::fs::read_to_string(of_b.join("file")).unwrap(), "x");
    let place = node.iscsi.plugin().join("iface-default/10.0.0.1:3260-iqn.2003-01.org.x:a-lun-0");
    assert!(mounts::is_mounted_at(&Linux, &place).unwrap());
    node.end("a").await;
    assert!(mounts::is_mounted_at(&Linux, &place).unwrap(), "another pod uses it");
    node.calls();
    node.end("b").await;
    assert!(!place.exists());
    assert!(!machine::is_held(&device));
    assert!(node.calls().iter().any(|call| call.ends_with("--logout")));
    assert!(std::process::Command::new("losetup").arg("-d").arg(&device).status().unwrap().success());
}

/// Two nodes never have a disk at a time that the controller gives to one of them.
#[tokio::test(start_paused = true)]
async fn a_disk_is_not_reached_for_before_the_node_may_have_it_and_is_in_use_until_its_session_ended() {
    let node = Node::new(Recorded::default());
    let name = "kubernetes.io/iscsi/10.0.0.1:iqn.2003-01.org.x:a:0";
    let request = |uid: &str| {
        let source: ISCSIPersistentVolumeSource = serde_json::from_value(source(0)).unwrap();
        Request::new(uid, "pv", &source, false).with(&[], true)
    };
    let secret = async || Ok(BTreeMap::new());
    let refused = node.iscsi.set_up(request("a"), std::future::pending(), secret()).await.unwrap_err().to_string();
    let expected = "MountVolume.WaitForAttach failed for volume \"pv\" : volume not attached according to node status";
    assert_eq!(refused, expected);
    assert_eq!(node.calls(), [""; 0]);
    // A pod that went while it waited gets nothing either.
    let gone = node.iscsi.set_up(request("b"), async { Ok(()) }, secret()).await.unwrap_err().to_string();
    assert!(gone.ends_with("the pod that wanted the disk is gone"), "{gone}");
    assert_eq!(node.calls(), [""; 0]);
    node.end("b").await;
    node.calls();
    node.set_up("c", "pv", source(0), true).await.unwrap();
    node.iscsi.in_use.release_all("c");
    assert_eq!(node.iscsi.in_use.names(), [name], "its session is still there");
    node.end("c").await;
    assert_eq!(node.iscsi.in_use.names(), [""; 0]);
}

/// The portal of a source may say its port or not: the place is the same, the name is not.
#[tokio::test]
async fn a_disk_of_two_names_is_let_go_under_both() {
    let node = Node::new(Recorded::default());
    let mut with_port = source(0);
    with_port["targetPortal"] = json!("10.0.0.1:3260");
    node.set_up("a", "pv-a", source(0), true).await.unwrap();
    node.set_up("b", "pv-b", with_port, true).await.unwrap();
    assert_eq!(node.iscsi.in_use.names().len(), 2);
    node.end("a").await;
    assert_eq!(node.iscsi.in_use.names().len(), 2, "its session is still there");
    node.end("b").await;
    assert_eq!(node.iscsi.in_use.names(), [""; 0]);
}

/// A kubelet of before has mounted it and written nothing down.
#[tokio::test]
async fn a_disk_that_is_found_mounted_is_in_use_until_its_session_ended() {
    let node = Node::new(Recorded::default());
    node.set_up("a", "pv", source(0), true).await.unwrap();
    let disk: ISCSIPersistentVolumeSource = serde_json::from_value(source(0)).unwrap();
    let used = Request::new("a", "pv", &disk, false).with(&[], true).used();
    node.iscsi.in_use.release_all(&holder(&used.place()));
    std::fs::remove_dir_all(node.iscsi.plugin().join(IN_USE)).unwrap();
    node.set_up("a", "pv", source(0), true).await.unwrap();
    node.iscsi.in_use.release_all("a");
    assert_eq!(node.iscsi.in_use.names().len(), 1, "its session is still there");
    node.end("a").await;
    assert_eq!(node.iscsi.in_use.names(), [""; 0]);
}
