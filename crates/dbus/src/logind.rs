//! logind: hears of a shutdown before it happens, and may hold it up for a while.
//! <https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.login1.html>

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::{Call, Connection, Error, Kind, Message, Value};

const NAME: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

fn call(connection: &mut Connection, interface: &str, member: &str, body: Vec<Value>) -> Result<Vec<Value>, Error> {
    connection.call(Call { destination: NAME, path: PATH, interface, member, body })
}

/// Holds up a shutdown until the descriptor is closed, or logind's patience ends.
pub fn inhibit_shutdown(connection: &mut Connection, who: &str, why: &str) -> Result<OwnedFd, Error> {
    let body = ["shutdown", who, why, "delay"].map(Value::text).to_vec();
    call(connection, MANAGER, "Inhibit", body)?;
    connection.take_descriptor().ok_or_else(|| Error::Protocol("logind gave no descriptor".into()))
}

/// The longest time for which logind lets a shutdown be held up.
pub fn max_delay(connection: &mut Connection) -> Result<Duration, Error> {
    let body = [MANAGER, "InhibitDelayMaxUSec"].map(Value::text).to_vec();
    let answer = call(connection, "org.freedesktop.DBus.Properties", "Get", body)?;
    match answer.first() {
        Some(Value::Variant(value)) => match value.as_ref() {
            Value::U64(micros) => Ok(Duration::from_micros(*micros)),
            other => Err(Error::Protocol(format!("InhibitDelayMaxUSec is {other:?}"))),
        },
        other => Err(Error::Protocol(format!("InhibitDelayMaxUSec is {other:?}"))),
    }
}

/// From here on, [`shutting_down`] finds shutdowns among the messages received.
pub fn watch_shutdown(connection: &mut Connection) -> Result<(), Error> {
    connection.subscribe(MANAGER, "PrepareForShutdown")
}

/// What a message says about a shutdown: it begins, or it was called off. None for other messages.
pub fn shutting_down(message: &Message) -> Option<bool> {
    let is_it = message.kind == Kind::Signal
        && message.interface.as_deref() == Some(MANAGER)
        && message.member.as_deref() == Some("PrepareForShutdown");
    match message.body.first() {
        Some(Value::Bool(begins)) if is_it => Some(*begins),
        _ => None,
    }
}
