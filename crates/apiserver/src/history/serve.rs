//! `GET /cox/history`: the series, or some of them, as JSON or as OpenMetrics with times.
//!
//! `?minutes=60&of=node|pod|component&what=cpu_cores&namespace=…&name=…&format=openmetrics`; without a word, all of the
//! last hour.

use std::fmt::Write;

use api::Status;
use http::{Response, StatusCode};
use registry::Verb;
use serde::Serialize;

use super::History;
use super::ring::{Key, Of, Ring, STEP, What};
use crate::body::{Body, response};
use crate::request_info::RequestInfo;

pub(crate) const PATH: &str = "/cox/history";

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) fn serve(history: &History, info: &RequestInfo) -> Result<Response<Body>, Status> {
    if !matches!(info.verb, Verb::Get | Verb::Head) {
        return Err(Status::method_not_allowed());
    }
    if !history.is_kept() {
        return Err(Status::no_such_path());
    }
    let question = Question::read(|name| info.query.get(name))?;
    // A copy, of a few megabytes at most: nobody waits while the answer is written.
    let ring = history.ring.lock().clone();
    Ok(match question.as_text {
        true => response(StatusCode::OK, OPEN_METRICS, open_metrics(&ring, &question).into()),
        false => {
            let text = serde_json::to_vec(&answer(&ring, &question)).map_err(Status::internal)?;
            response(StatusCode::OK, "application/json", text.into())
        }
    })
}

#[derive(Debug, PartialEq)]
struct Question {
    minutes: usize,
    of: Option<Of>,
    what: Option<What>,
    namespace: Option<String>,
    name: Option<String>,
    as_text: bool,
}

impl Question {
    fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> Result<Self, Status> {
        let wrong = |name: &str, text: &str| Status::bad_request(format!("{name}={text:?} is not understood"));
        let minutes = match get("minutes") {
            None => 60,
            Some(text) => text.parse().ok().filter(|minutes| *minutes > 0).ok_or_else(|| wrong("minutes", text))?,
        };
        let of = get("of").map(|text| Of::parse(text).ok_or_else(|| wrong("of", text))).transpose()?;
        let what = get("what").map(|text| What::parse(text).ok_or_else(|| wrong("what", text))).transpose()?;
        let as_text = match get("format") {
            None | Some("json") => false,
            Some("openmetrics") => true,
            Some(text) => return Err(wrong("format", text)),
        };
        let (namespace, name) = (get("namespace").map(str::to_owned), get("name").map(str::to_owned));
        Ok(Self { minutes, of, what, namespace, name, as_text })
    }

    fn wants(&self, key: &Key) -> bool {
        self.of.is_none_or(|of| of == key.of)
            && self.what.is_none_or(|what| what == key.what)
            && self.namespace.as_deref().is_none_or(|namespace| *namespace == *key.namespace)
            && self.name.as_deref().is_none_or(|name| *name == *key.name)
    }
}

/// Written as it is: a tree of values would take many times as much.
#[derive(Serialize)]
struct Answer<'r> {
    left_out: usize,
    series: Vec<Series<'r>>,
    step: u64,
}

#[derive(Serialize)]
struct Series<'r> {
    name: &'r str,
    namespace: &'r str,
    of: &'static str,
    points: Vec<(u64, f32)>,
    what: &'static str,
}

fn answer<'r>(ring: &'r Ring, question: &Question) -> Answer<'r> {
    let recent = ring.recent(question.minutes, |key| question.wants(key)).filter(|(_, points)| !points.is_empty());
    let series = recent.map(|(key, points)| {
        let (what, of) = (key.what.as_str(), key.of.as_str());
        Series { name: &key.name, namespace: &key.namespace, of, points, what }
    });
    Answer { left_out: ring.left_out(), series: series.collect(), step: STEP }
}

fn open_metrics(ring: &Ring, question: &Question) -> String {
    let mut out = String::new();
    let mut family = None;
    for (key, points) in ring.recent(question.minutes, |key| question.wants(key)) {
        let name = key.what.as_str();
        if family.replace(key.what) != Some(key.what) {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "# TYPE cox_history_{name} gauge\n# HELP cox_history_{name} {}", key.what.help());
        }
        let labels = [("name", &*key.name), ("namespace", &*key.namespace), ("of", key.of.as_str())];
        let labels = labels.map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).join(",");
        for (time, value) in points {
            let _ = writeln!(out, "cox_history_{name}{{{labels}}} {value} {time}");
        }
    }
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "# TYPE cox_history_left_out_series gauge\n# HELP cox_history_left_out_series Series without room.\n\
         cox_history_left_out_series {}\n# EOF",
        ring.left_out()
    );
    out
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn json(ring: &Ring, question: &Question) -> Value {
        serde_json::from_slice(&serde_json::to_vec(&answer(ring, question)).unwrap()).unwrap()
    }

    fn question(pairs: &[(&str, &'static str)]) -> Result<Question, String> {
        let pairs: BTreeMap<&str, &'static str> = pairs.iter().copied().collect();
        Question::read(|name| pairs.get(name).copied()).map_err(|status| status.message)
    }

    fn ring() -> Ring {
        let key =
            |what, of, namespace: &str, name: &str| Key { what, of, namespace: namespace.into(), name: name.into() };
        let mut ring = Ring::default();
        for (minute, value) in [(10, 0.5), (11, 0.25)] {
            ring.record(
                minute,
                [
                    (key(What::Memory, Of::Node, "", "n1"), 7.0),
                    (key(What::Cpu, Of::Pod, "default", "we\"b"), value),
                    (key(What::Cpu, Of::Node, "", "n1"), 1.5),
                ],
            );
        }
        ring
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (pairs, problem) in [
            (&[("minutes", "soon")][..], "minutes=\"soon\" is not understood"),
            (&[("minutes", "0")], "minutes=\"0\" is not understood"),
            (&[("of", "planet")], "of=\"planet\" is not understood"),
            (&[("what", "mood")], "what=\"mood\" is not understood"),
            (&[("format", "xml")], "format=\"xml\" is not understood"),
        ] {
            assert_eq!(question(pairs), Err(problem.to_owned()));
        }
    }

    #[test]
    fn series_are_told_as_json() {
        let told = json(&ring(), &question(&[("of", "pod"), ("minutes", "1")]).unwrap());
        let expected = json!({"step": 60, "left_out": 0, "series": [
            {"what": "cpu_cores", "of": "pod", "namespace": "default", "name": "we\"b", "points": [[660, 0.25]]},
        ]});
        assert_eq!(told, expected);
        let all = json(&ring(), &question(&[]).unwrap());
        assert_eq!(all["series"].as_array().unwrap().len(), 3);
        assert_eq!(json(&ring(), &question(&[("name", "other")]).unwrap())["series"], json!([]));
    }

    #[test]
    fn security_names_cannot_leave_their_label() {
        let text = open_metrics(&ring(), &question(&[("format", "openmetrics")]).unwrap());
        assert_eq!(
            text,
            "# TYPE cox_history_cpu_cores gauge\n# HELP cox_history_cpu_cores Cores in use.\n\
             cox_history_cpu_cores{name=\"n1\",namespace=\"\",of=\"node\"} 1.5 600\n\
             cox_history_cpu_cores{name=\"n1\",namespace=\"\",of=\"node\"} 1.5 660\n\
             cox_history_cpu_cores{name=\"we\\\"b\",namespace=\"default\",of=\"pod\"} 0.5 600\n\
             cox_history_cpu_cores{name=\"we\\\"b\",namespace=\"default\",of=\"pod\"} 0.25 660\n\
             # TYPE cox_history_memory_bytes gauge\n# HELP cox_history_memory_bytes Memory in use, in bytes.\n\
             cox_history_memory_bytes{name=\"n1\",namespace=\"\",of=\"node\"} 7 600\n\
             cox_history_memory_bytes{name=\"n1\",namespace=\"\",of=\"node\"} 7 660\n\
             # TYPE cox_history_left_out_series gauge\n# HELP cox_history_left_out_series Series without room.\n\
             cox_history_left_out_series 0\n# EOF\n"
        );
    }
}
