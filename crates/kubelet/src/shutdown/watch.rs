//! The thread that listens to logind: takes the lock that holds up shutdowns, and passes on what it hears.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dbus::{Connection, logind, systemd};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Event;

/// As upstream, after a connection that ended.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// Between looks at a configuration that logind is to read again.
const RELOAD_DELAY: Duration = Duration::from_millis(100);
const RELOAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Nothing is due; a signal ends the wait.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
const OVERRIDE: &str = "/etc/systemd/logind.conf.d/99-kubelet.conf";

/// Listens until stopped, connecting again when logind or the bus went away.
pub(super) async fn run(bus: PathBuf, wanted: Duration, events: mpsc::Sender<Event>, stop: CancellationToken) {
    let mut is_first = true;
    while !stop.is_cancelled() {
        let (path, sender) = (bus.clone(), events.clone());
        let opened = tokio::task::spawn_blocking(move || -> Result<_, dbus::Error> {
            let mut connection = Connection::open(&path)?;
            prepare(&mut connection, wanted, &sender)?;
            Ok((connection.handle()?, connection))
        });
        match opened.await {
            Ok(Ok((handle, connection))) => {
                tracing::info!("holding up shutdowns of the node for its pods");
                let sender = events.clone();
                let mut listening = tokio::task::spawn_blocking(move || listen(connection, &sender));
                let ended = tokio::select! {
                    ended = &mut listening => ended,
                    () = stop.cancelled() => {
                        handle.close();
                        listening.await
                    }
                };
                if let Ok(Err(error)) = ended
                    && !stop.is_cancelled()
                {
                    tracing::warn!(%error, "no longer hearing of shutdowns, connecting again");
                }
            }
            Ok(Err(error)) if is_first => {
                tracing::error!(%error, "shutdowns of the node will not be noticed, will retry")
            }
            Ok(Err(error)) => tracing::debug!(%error, "shutdowns of the node will not be noticed, will retry"),
            Err(error) => tracing::error!(%error, "listening for shutdowns broke off"),
        }
        is_first = false;
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RECONNECT_INTERVAL) => {}
        }
    }
}

/// Makes logind patient enough, takes the lock, and asks for signals.
fn prepare(connection: &mut Connection, wanted: Duration, events: &mpsc::Sender<Event>) -> Result<(), dbus::Error> {
    if logind::max_delay(connection)? < wanted {
        ask_for_delay(Path::new(OVERRIDE), wanted)?;
        systemd::kill_unit(connection, "systemd-logind.service", HANGUP)?;
        let deadline = Instant::now() + RELOAD_TIMEOUT;
        while logind::max_delay(connection)? < wanted {
            if Instant::now() > deadline {
                return Err(dbus::Error::Protocol(format!(
                    "logind lets a shutdown be held up for less than the {} s that are configured",
                    wanted.as_secs()
                )));
            }
            // Nobody tells when it has read its configuration.
            std::thread::sleep(RELOAD_DELAY);
        }
    }
    logind::watch_shutdown(connection)?;
    hold(connection, events)
}

/// SIGHUP: read your configuration again.
const HANGUP: i32 = 1;

fn ask_for_delay(path: &Path, wanted: Duration) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(
        path,
        format!(
            "# Written by the kubelet: its pods need this long.\n[Login]\nInhibitDelayMaxSec={}\n",
            wanted.as_secs()
        ),
    )
}

fn hold(connection: &mut Connection, events: &mpsc::Sender<Event>) -> Result<(), dbus::Error> {
    let lock = logind::inhibit_shutdown(connection, "kubelet", "Kubelet needs time to handle node shutdown")?;
    send(events, Event::Holding(lock))
}

/// Passes shutdowns on until the connection ends.
fn listen(mut connection: Connection, events: &mpsc::Sender<Event>) -> Result<(), dbus::Error> {
    loop {
        let Some(message) = connection.receive(FOREVER)? else { continue };
        match logind::shutting_down(&mut connection, &message)? {
            Some(true) => send(events, Event::Begins)?,
            Some(false) => {
                send(events, Event::CalledOff)?;
                // The lock was given back when pods had ended.
                hold(&mut connection, events)?;
            }
            None => {}
        }
    }
}

fn send(events: &mpsc::Sender<Event>, event: Event) -> Result<(), dbus::Error> {
    events.blocking_send(event).map_err(|_| dbus::Error::Protocol("nobody listens any more".into()))
}
