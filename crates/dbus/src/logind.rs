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

/// What a message says about a shutdown: it begins, or it was called off. None for other messages, and for those of others than
/// logind.
pub fn shutting_down(connection: &mut Connection, message: &Message) -> Result<Option<bool>, Error> {
    let is_it = message.kind == Kind::Signal
        && message.interface.as_deref() == Some(MANAGER)
        && message.member.as_deref() == Some("PrepareForShutdown");
    match message.body.first() {
        Some(Value::Bool(begins)) if is_it => Ok(connection.is_from(message, NAME)?.then_some(*begins)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Whoever reaches the bus may send this signal, and a node that believed it would end its pods.
    #[test]
    fn security_a_shutdown_is_announced_by_logind_only() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut connection = Connection::over(ours);
        let bus = std::thread::spawn(move || {
            let mut bus = Connection::over(theirs);
            while let Ok(Some(call)) = bus.receive(Duration::from_secs(60)) {
                assert_eq!((call.member.as_deref(), call.body), (Some("GetNameOwner"), vec![Value::text(NAME)]));
                let body = vec![Value::text(":1.1")];
                bus.send(Message { reply_serial: Some(call.serial), body, ..Message::new(Kind::Answer) }, &[]).unwrap();
            }
        });
        let signal = |sender: Option<&str>, member: &str| Message {
            interface: Some(MANAGER.into()),
            member: Some(member.into()),
            sender: sender.map(str::to_owned),
            body: vec![Value::Bool(true)],
            ..Message::new(Kind::Signal)
        };
        for (sender, member, expected) in [
            (Some(":1.1"), "PrepareForShutdown", Some(true)),
            (Some(":1.2"), "PrepareForShutdown", None),
            (None, "PrepareForShutdown", None),
            (Some(":1.1"), "PrepareForSleep", None),
        ] {
            let told = shutting_down(&mut connection, &signal(sender, member)).unwrap();
            assert_eq!(told, expected, "{sender:?} {member}");
        }
        drop(connection);
        bus.join().unwrap();
    }
}
