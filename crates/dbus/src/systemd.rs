//! systemd's own interface: slices and scopes, which are systemd's names for cgroups.
//! <https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.systemd1.html>

use std::time::{Duration, Instant};

use crate::{Call, Connection, Error, Kind, Message, Value};

const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// A job for a slice or a scope has nothing to wait for.
const JOB_TIMEOUT: Duration = Duration::from_secs(30);

/// The version of the systemd that answers.
pub fn version(connection: &mut Connection) -> Result<String, Error> {
    let body = [MANAGER, "Version"].map(Value::text).to_vec();
    let interface = "org.freedesktop.DBus.Properties";
    let answer = connection.call(Call { destination: NAME, path: PATH, interface, member: "Get", body })?;
    match answer.first() {
        Some(Value::Variant(value)) => match value.as_ref() {
            Value::Text(version) => Ok(version.clone()),
            other => Err(Error::Protocol(format!("the version is {other:?}"))),
        },
        other => Err(Error::Protocol(format!("the version is {other:?}"))),
    }
}

/// A quota of processor time as microseconds per second, in whole percents: systemd knows no finer ones.
pub fn quota_per_second(quota: i64, period: i64) -> u64 {
    const PERCENT: u64 = 10_000;
    let micros = (quota.max(0) as u64).saturating_mul(1_000_000) / period.max(1) as u64;
    // All ones is systemd's word for no limit.
    micros.checked_next_multiple_of(PERCENT).unwrap_or(u64::MAX)
}

/// How systemd writes the path of a slice: `a-b.slice` is at `/a.slice/a-b.slice`.
pub fn slice_path(slice: &str) -> String {
    let stem = slice.trim_end_matches(".slice");
    let dashes = stem.match_indices('-').map(|(at, _)| at).chain([stem.len()]);
    dashes.map(|end| format!("/{}.slice", &stem[..end])).collect()
}

fn call(connection: &mut Connection, member: &str, body: Vec<Value>) -> Result<Vec<Value>, Error> {
    connection.call(Call { destination: NAME, path: PATH, interface: MANAGER, member, body })
}

/// A property of a unit.
pub type Property = (&'static str, Value);

fn list(properties: &[Property]) -> Value {
    let pairs =
        properties.iter().map(|(name, value)| Value::Struct(vec![Value::text(*name), Value::variant(value.clone())]));
    Value::Array("(sv)".into(), pairs.collect())
}

/// Starts a slice or a scope and waits until it is there. One that is there already only gets its properties.
pub fn start_unit(connection: &mut Connection, unit: &str, properties: &[Property]) -> Result<(), Error> {
    let body =
        vec![Value::text(unit), Value::text("replace"), list(properties), Value::Array("(sa(sv))".into(), Vec::new())];
    match job(connection, "StartTransientUnit", body) {
        Err(Error::Refused { name, .. }) if name == "org.freedesktop.systemd1.UnitExists" => Ok(()),
        other => other,
    }
}

/// Changes properties of a unit until the next boot.
pub fn set_properties(connection: &mut Connection, unit: &str, properties: &[Property]) -> Result<(), Error> {
    call(connection, "SetUnitProperties", vec![Value::text(unit), Value::Bool(true), list(properties)])?;
    Ok(())
}

/// Stops a unit and waits until it is gone. One that is gone already is fine.
pub fn stop_unit(connection: &mut Connection, unit: &str) -> Result<(), Error> {
    match job(connection, "StopUnit", vec![Value::text(unit), Value::text("replace")]) {
        Err(Error::Refused { name, .. }) if name == "org.freedesktop.systemd1.NoSuchUnit" => Ok(()),
        other => other,
    }
}

/// Sends a signal to all processes of a unit.
pub fn kill_unit(connection: &mut Connection, unit: &str, signal: i32) -> Result<(), Error> {
    call(connection, "KillUnit", vec![Value::text(unit), Value::text("all"), Value::I32(signal)])?;
    Ok(())
}

/// Calls a method that answers with a job, and waits for the job's end.
fn job(connection: &mut Connection, member: &str, body: Vec<Value>) -> Result<(), Error> {
    // Before the call: the job may be done before its name is known.
    connection.subscribe(MANAGER, "JobRemoved")?;
    call(connection, "Subscribe", Vec::new())?;
    let answer = call(connection, member, body)?;
    let Some(Value::Path(job)) = answer.first() else {
        return Err(Error::Protocol(format!("{member} answered {answer:?}")));
    };
    let deadline = Instant::now() + JOB_TIMEOUT;
    // Others may send without end.
    while Instant::now() < deadline
        && let Some(message) = connection.receive(deadline.saturating_duration_since(Instant::now()))?
    {
        match job_end(&message, job) {
            Some(result) if connection.is_from(&message, NAME)? => match result {
                "done" => return Ok(()),
                result => {
                    return Err(Error::Refused {
                        name: member.into(),
                        message: format!("the job of systemd ended with {result:?}"),
                    });
                }
            },
            _ => {}
        }
    }
    Err(Error::Protocol(format!("{member}: systemd did not end its job in time")))
}

/// How the job ended, if this message says so.
fn job_end<'a>(message: &'a Message, job: &str) -> Option<&'a str> {
    if message.kind != Kind::Signal || message.member.as_deref() != Some("JobRemoved") {
        return None;
    }
    match message.body.as_slice() {
        [Value::U32(_), Value::Path(path), Value::Text(_), Value::Text(result)] if path == job => Some(result),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for (slice, expected) in [
            ("a.slice", "/a.slice"),
            ("kubepods-burstable-pod1.slice", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"),
        ] {
            assert_eq!(slice_path(slice), expected);
        }
        for (quota, period, expected) in
            [(50_000, 100_000, 500_000), (1, 100_000, 10_000), (300_000, 100_000, 3_000_000), (i64::MAX, 1, u64::MAX)]
        {
            assert_eq!(quota_per_second(quota, period), expected);
        }
    }
}
