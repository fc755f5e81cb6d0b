//! Our readers beside serde's: of every kind, both accept the same texts, which mean the same.

use std::fmt::Debug;

use k8s_openapi::Resource;
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde::de::DeserializeOwned;

use super::Read;
use crate::schema::{self, Field, Struct, StructRef, Type};

struct Kind {
    version: &'static str,
    name: &'static str,
    definition: StructRef,
    read: fn(&str) -> bool,
}

impl Kind {
    fn of<K: Resource + Read + DeserializeOwned + PartialEq + Debug>() -> Kind {
        Kind { version: K::API_VERSION, name: K::KIND, definition: schema::of::<K>(), read: by_both::<K> }
    }
}

/// Whether both readers accept a text. Panics if only one does, or if they make different objects of it.
fn by_both<T: Read + DeserializeOwned + PartialEq + Debug>(text: &str) -> bool {
    match (super::from_str::<T>(text), serde_json::from_str::<T>(text)) {
        (Ok(ours), Ok(theirs)) if ours == theirs => true,
        (Err(_), Err(_)) => false,
        (ours, theirs) => {
            panic!("{}: {text}\nours: {ours:?}\nserde's: {theirs:?}", std::any::type_name::<T>())
        }
    }
}

macro_rules! all_kinds {
    ($($kind:ty),+) => {
        vec![$(Kind::of::<$kind>()),+]
    };
}

fn kinds() -> Vec<Kind> {
    include!(concat!(env!("OUT_DIR"), "/all_kinds.rs"))
}

/// Texts of a type, mostly with sound values.
struct Writer {
    random: TestRng,
    text: String,
    /// The definition of the whole.
    top: Box<str>,
    /// How many out of a thousand values are of another type.
    wrong: u32,
}

/// Values of every type, and some that JSON has not.
const WORDS: [&str; 26] = [
    "null",
    "true",
    "false",
    "0",
    "-1",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "1.5",
    "1.0",
    "1e3",
    "01",
    "-",
    "1.",
    "1e",
    "nul",
    "\"\"",
    "\"a\\u00e9\\ud83d\\ude00\\/\\b\\n\"",
    "\"\\ud800\"",
    "\"\\udc00x\"",
    "\"\\x\"",
    "\"2024-02-30T00:00:00Z\"",
    "[]",
    "{}",
    "[1,]",
    "{\"a\":1,}",
];

impl Writer {
    fn below(&mut self, limit: u32) -> u32 {
        use proptest::prelude::Rng as _;
        self.random.next_u32() % limit
    }

    fn one_of(&mut self, words: &[&str]) {
        let at = self.below(words.len() as u32) as usize;
        self.text.push_str(words[at]);
    }

    fn space(&mut self) {
        if self.below(20) == 0 {
            self.one_of(&[" ", "\n", "\t\r "]);
        }
    }

    fn value(&mut self, of: &Type, depth: u32) {
        self.space();
        if self.below(1000) < self.wrong {
            return self.one_of(&WORDS);
        }
        match of {
            Type::Any | Type::Deduced => self.one_of(&["{\"a\":[1,{\"b\":null}]}", "{}", "{\"\\u0061\":1.5e3}"]),
            Type::Bool => self.one_of(&["true", "false"]),
            Type::Int32 | Type::Int64 => self.one_of(&["0", "7", "-12", "2147483647"]),
            Type::Number => self.one_of(&["0", "1.5", "-2e-3"]),
            Type::String => self.one_of(&["\"\"", "\"text\"", "\"\\\"\\\\\\t\\u00fc\\ud83d\\ude00\"", "\"ü\u{7f}\""]),
            Type::Bytes => self.one_of(&["\"\"", "\"Y294\"", "\"Y294c3dhaW4=\""]),
            Type::Time => self.one_of(&["\"2026-01-02T03:04:05Z\"", "\"2026-01-02T03:04:05.678901+02:00\""]),
            Type::IntOrString => self.one_of(&["80", "\"http\"", "\"25%\""]),
            Type::Quantity => self.one_of(&["\"100m\"", "\"1Gi\""]),
            Type::List(of) => self.several('[', ']', depth, |writer, depth| writer.value(of, depth)),
            Type::Map(of) => self.several('{', '}', depth, |writer, depth| {
                writer.one_of(&["\"a\"", "\"b/c\"", "\"\\u0064\""]);
                writer.text.push(':');
                writer.value(of, depth);
            }),
            Type::Struct(of) => self.structure(of, depth),
        }
        self.space();
    }

    fn several(&mut self, open: char, close: char, depth: u32, write: impl Fn(&mut Self, u32)) {
        self.text.push(open);
        for at in 0..if depth == 0 { 0 } else { self.below(3) } {
            if at > 0 {
                self.text.push(',');
            }
            write(self, depth - 1);
        }
        self.text.push(close);
    }

    fn structure(&mut self, of: &Struct, depth: u32) {
        self.text.push('{');
        let mut is_first = true;
        // These can have one value only.
        let is_kind = of.field("metadata").is_some() || of.name == self.top;
        let is_constant = |field: &Field| is_kind && ["apiVersion", "kind"].contains(&&*field.name);
        for field in of.fields() {
            if is_constant(field) && self.below(50) > 0 {
                continue;
            }
            let is_given = depth > 0 && self.below(3) > 0 || field.required && self.below(40) > 0;
            // Some are given twice.
            for _ in 0..u32::from(is_given) + u32::from(is_given && self.below(60) == 0) {
                if !std::mem::take(&mut is_first) {
                    self.text.push(',');
                }
                if self.below(40) == 0 {
                    self.text.push_str("\"unknown\":{\"a\":[null]},");
                }
                self.text.push_str(&format!("{:?}:", field.name));
                self.value(&field.ty, depth.saturating_sub(1));
            }
        }
        self.text.push('}');
    }

    fn cut(&mut self) {
        let mut at = self.below(self.text.len() as u32 + 1) as usize;
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        self.text.truncate(at);
    }
}

#[test]
fn all_kinds_are_read_as_by_serde() {
    let mut accepted = 0;
    let mut refused = 0;
    let kinds = kinds();
    for (seed, kind) in kinds.iter().enumerate() {
        let mut accepted_of_kind = 0;
        for wrong in [0, 0, 0, 0, 2, 2, 2, 20] {
            let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[(seed + wrong as usize) as u8; 32]);
            let mut writer = Writer { random, text: String::new(), top: kind.definition.name.clone(), wrong };
            for _ in 0..8 {
                writer.text.clear();
                let depth = 1 + writer.below(7);
                writer.structure(&kind.definition, depth);
                if writer.below(10) == 0 {
                    writer.cut();
                }
                let is_accepted = (kind.read)(&writer.text);
                accepted_of_kind += u32::from(is_accepted);
                refused += u32::from(!is_accepted);
            }
        }
        assert!(accepted_of_kind > 0, "no text of {} was sound", kind.name);
        accepted += accepted_of_kind;
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
}

#[test]
fn versions_and_kinds_must_be_those_of_the_type() {
    for kind in kinds() {
        for (text, is_sound) in [
            (format!("{{\"kind\":{:?},\"apiVersion\":{:?}}}", kind.name, kind.version), true),
            (format!("{{\"kind\":{:?},\"apiVersion\":null}}", kind.name), false),
            (format!("{{\"kind\":\"{}s\"}}", kind.name), false),
            ("{\"apiVersion\":\"v9\"}".to_owned(), false),
        ] {
            let is_accepted = (kind.read)(&text);
            assert!(is_sound || !is_accepted, "{text}");
        }
    }
}

#[test]
fn depth_is_limited() {
    let nested = |depth| {
        format!("{{\"metadata\":{{\"managedFields\":[{{\"fieldsV1\":{}{}}}]}}}}", "[".repeat(depth), "]".repeat(depth))
    };
    let pods = Kind::of::<k8s_openapi::api::core::v1::Pod>();
    for depth in 100..140 {
        (pods.read)(&nested(depth));
        (pods.read)(&format!("{{\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth)));
    }
}

/// A server's error repeats what the reader says: it names the place and the type that was expected.
#[test]
fn errors_say_what_was_expected_and_where() {
    use k8s_openapi::api::core::v1::Pod;
    for text in [
        "{\"metadata\":7}",
        "{\"metadata\":{\"name\":7}}",
        "{\"metadata\":{\"name\":{}}}",
        "{\"spec\":{\"containers\":{}}}",
        "{\"spec\":{\"containers\":[\n{\"name\":true}]}}",
        "{\"spec\":{\"hostNetwork\":\"yes\"}}",
        "{\"spec\":{\"priority\":1.5}}",
        "{\"spec\":{\"priority\":\"a\"}}",
        "{\"spec\":{} ",
        "{\"spec\" 1}",
        "{} x",
        "",
    ] {
        let ours = super::from_str::<Pod>(text).unwrap_err().to_string();
        let theirs = serde_json::from_str::<Pod>(text).unwrap_err().to_string();
        let what = |error: &str| error.split(" at line ").next().unwrap_or_default().to_owned();
        assert_eq!(what(&ours), what(&theirs), "{text}");
        assert!(ours.contains(" at line "), "{ours}");
    }
}

#[test]
fn what_is_kept_has_no_room_to_spare() {
    let text = r#"{"spec":{"containers":[{"name":"a","args":["1","2","3","4","5"]}],"tolerations":[]}}"#;
    let pod = super::from_slice_by(text.as_bytes(), |from| {
        from.to_keep();
        k8s_openapi::api::core::v1::Pod::read(from)
    });
    let spec = pod.unwrap().spec.unwrap();
    let args = spec.containers[0].args.as_ref().unwrap();
    assert_eq!((spec.containers.capacity(), args.len(), args.capacity()), (1, 5, 5));
}
