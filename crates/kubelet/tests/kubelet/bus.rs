//! A bus with a logind and a systemd of the tests' own on it: Debian's dbus-daemon, and threads that answer.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dbus::{Call, Connection, Kind, Message, Value};

/// The bus, as long as it lives.
pub(crate) struct Bus {
    pub(crate) socket: PathBuf,
    daemon: Child,
}

impl Bus {
    pub(crate) fn start(dir: &Path) -> Self {
        let (socket, config) = (dir.join("bus.sock"), dir.join("bus.conf"));
        let text = format!(
            "<!DOCTYPE busconfig PUBLIC \"-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN\" \
             \"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd\">\
             <busconfig><type>custom</type><listen>unix:path={}</listen><auth>EXTERNAL</auth><policy context=\"default\">\
             <allow send_destination=\"*\"/><allow receive_sender=\"*\"/><allow own=\"*\"/><allow user=\"*\"/></policy></busconfig>",
            socket.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("dbus-daemon");
        command.arg("--nofork").arg("--config-file").arg(&config).stdin(Stdio::null());
        let daemon = command.spawn().expect("dbus-daemon is installed (scripts/deps)");
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while Connection::open(&socket).is_err() {
            assert!(std::time::Instant::now() < deadline, "the bus never answered");
            std::thread::sleep(Duration::from_millis(10));
        }
        Bus { socket, daemon }
    }

    /// Answers calls to a name with what `answer` makes of them, until the bus ends.
    fn serve(
        &self,
        name: &str,
        mut answer: impl FnMut(&Message, &mut Connection) -> (Vec<Value>, Vec<OwnedFd>) + Send + 'static,
    ) {
        let mut connection = Connection::open(&self.socket).unwrap();
        connection
            .call(Call {
                destination: "org.freedesktop.DBus",
                path: "/org/freedesktop/DBus",
                interface: "org.freedesktop.DBus",
                member: "RequestName",
                body: vec![Value::text(name), Value::U32(0)],
            })
            .unwrap();
        std::thread::spawn(move || {
            while let Ok(message) = connection.receive(Duration::from_secs(3600)) {
                let Some(message) = message.filter(|message| message.kind == Kind::Call) else { continue };
                let (body, descriptors) = answer(&message, &mut connection);
                let reply = Message {
                    reply_serial: Some(message.serial),
                    destination: message.sender.clone(),
                    body,
                    ..Message::new(Kind::Answer)
                };
                if connection.send(reply, &descriptors.iter().collect::<Vec<_>>()).is_err() {
                    return;
                }
            }
        });
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// logind: holds the other ends of the locks it gave out.
pub(crate) struct Logind {
    socket: PathBuf,
    locks: Arc<Mutex<Vec<std::io::PipeReader>>>,
}

impl Logind {
    pub(crate) fn start(bus: &Bus) -> Self {
        let locks: Arc<Mutex<Vec<std::io::PipeReader>>> = Arc::default();
        let given = locks.clone();
        bus.serve("org.freedesktop.login1", move |message, connection| match message.member.as_deref() {
            Some("Inhibit") => {
                assert_eq!(message.body[0], Value::text("shutdown"));
                assert_eq!(message.body[3], Value::text("delay"));
                let (reader, writer) = std::io::pipe().unwrap();
                given.lock().unwrap().push(reader);
                (vec![Value::Descriptor(0)], vec![writer.into()])
            }
            Some("Get") => (vec![Value::variant(Value::U64(600_000_000))], Vec::new()),
            Some("Announce") => {
                let signal = Message {
                    path: Some("/org/freedesktop/login1".into()),
                    interface: Some("org.freedesktop.login1.Manager".into()),
                    member: Some("PrepareForShutdown".into()),
                    body: message.body.clone(),
                    ..Message::new(Kind::Signal)
                };
                connection.send(signal, &[]).unwrap();
                (Vec::new(), Vec::new())
            }
            other => panic!("logind is asked for {other:?}"),
        });
        Logind { socket: bus.socket.clone(), locks }
    }

    /// How many locks were ever taken.
    pub(crate) fn taken(&self) -> usize {
        self.locks.lock().unwrap().len()
    }

    /// Waits until the newest lock is given back.
    pub(crate) fn wait_released(&self) {
        let mut lock = self.locks.lock().unwrap().last().unwrap().try_clone().unwrap();
        // Nobody writes: the end comes when the other side is closed everywhere.
        assert_eq!(lock.read(&mut [0]).unwrap(), 0);
    }

    /// Announces a shutdown, or that it was called off.
    pub(crate) fn announce(&self, begins: bool) {
        let mut connection = Connection::open(&self.socket).unwrap();
        // The bus has taken the signal before the answer.
        connection
            .call(Call {
                destination: "org.freedesktop.login1",
                path: "/org/freedesktop/login1",
                interface: "test.Announcer",
                member: "Announce",
                body: vec![Value::Bool(begins)],
            })
            .unwrap();
    }
}

/// systemd: writes down what it is asked for, and says that it is done.
#[derive(Default, Clone)]
pub(crate) struct Systemd(Arc<Mutex<Vec<Asked>>>);

/// One call: what, of which unit, with which properties.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) unit: String,
    pub(crate) properties: Vec<(String, Value)>,
}

impl Systemd {
    pub(crate) fn start(bus: &Bus) -> Self {
        let systemd = Systemd::default();
        let (asked, mut job) = (systemd.clone(), 0);
        bus.serve("org.freedesktop.systemd1", move |message, connection| {
            let method = message.member.clone().unwrap();
            let (Some(Value::Text(unit)), true) = (message.body.first(), method != "Get") else {
                let version = if method == "Get" { vec![Value::variant(Value::text("252"))] } else { Vec::new() };
                return (version, Vec::new());
            };
            let list = message.body.iter().find_map(|value| match value {
                Value::Array(of, list) if of == "(sv)" => Some(list.clone()),
                _ => None,
            });
            let properties = list.unwrap_or_default().into_iter().map(|pair| match pair {
                Value::Struct(parts) => match parts.as_slice() {
                    [Value::Text(name), Value::Variant(value)] => (name.clone(), value.as_ref().clone()),
                    other => panic!("no property: {other:?}"),
                },
                other => panic!("no property: {other:?}"),
            });
            asked.0.lock().unwrap().push(Asked {
                method: method.clone(),
                unit: unit.clone(),
                properties: properties.collect(),
            });
            if method == "SetUnitProperties" {
                return (Vec::new(), Vec::new());
            }
            job += 1;
            let path = Value::Path(format!("/org/freedesktop/systemd1/job/{job}"));
            let done = Message {
                path: Some("/org/freedesktop/systemd1".into()),
                interface: Some("org.freedesktop.systemd1.Manager".into()),
                member: Some("JobRemoved".into()),
                body: vec![Value::U32(job), path.clone(), Value::text(unit.clone()), Value::text("done")],
                ..Message::new(Kind::Signal)
            };
            connection.send(done, &[]).unwrap();
            (vec![path], Vec::new())
        });
        systemd
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.0.lock().unwrap().clone()
    }
}
