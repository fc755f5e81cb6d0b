//! The messages of pprof's `profile.proto` that are used here, by their published numbers.

use std::collections::HashMap;
use std::io::Write;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub(crate) sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub(crate) string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(crate) time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub(crate) duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub(crate) period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub(crate) period: i64,
    #[prost(int64, repeated, tag = "13")]
    pub(crate) comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    pub(crate) default_sample_type: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ValueType {
    #[prost(int64, tag = "1")]
    pub(crate) kind: i64,
    #[prost(int64, tag = "2")]
    pub(crate) unit: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub(crate) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) label: Vec<Label>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Label {
    #[prost(int64, tag = "1")]
    pub(crate) key: i64,
    #[prost(int64, tag = "2")]
    pub(crate) str: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) file_offset: u64,
    #[prost(int64, tag = "5")]
    pub(crate) filename: i64,
    #[prost(int64, tag = "6")]
    pub(crate) build_id: i64,
    #[prost(bool, tag = "7")]
    pub(crate) has_functions: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Location {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) address: u64,
    #[prost(message, repeated, tag = "4")]
    pub(crate) line: Vec<Line>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Line {
    #[prost(uint64, tag = "1")]
    pub(crate) function_id: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Function {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(int64, tag = "2")]
    pub(crate) name: i64,
    #[prost(int64, tag = "3")]
    pub(crate) system_name: i64,
}

/// Texts by their place in the table, whose first is empty.
pub(crate) struct Texts {
    ids: HashMap<String, i64>,
    table: Vec<String>,
}

impl Texts {
    pub(crate) fn new() -> Self {
        Self { ids: HashMap::from([(String::new(), 0)]), table: vec![String::new()] }
    }

    pub(crate) fn id(&mut self, text: &str) -> i64 {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = self.table.len() as i64;
        self.table.push(text.to_owned());
        self.ids.insert(text.to_owned(), id);
        id
    }

    pub(crate) fn kind(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType { kind: self.id(kind), unit: self.id(unit) }
    }
}

/// As a file: compressed.
pub(crate) fn encode(mut profile: Profile, texts: Texts) -> std::io::Result<Vec<u8>> {
    profile.string_table = texts.table;
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(&prost::Message::encode_to_vec(&profile))?;
    out.finish()
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or_default())
}

#[cfg(test)]
pub(crate) fn decode(bytes: &[u8]) -> Profile {
    use std::io::Read;

    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    prost::Message::decode(plain.as_slice()).unwrap()
}

#[cfg(test)]
impl Profile {
    /// Every stack as the names of its functions, innermost first, with its figures.
    pub(crate) fn stacks(&self) -> Vec<(Vec<String>, Vec<i64>)> {
        let function = |id: u64| {
            let found = self.function.iter().find(|function| function.id == id).unwrap();
            self.string_table[found.name as usize].clone()
        };
        let name = |id: &u64| {
            let location = &self.location[*id as usize - 1];
            location.line.first().map_or_else(|| format!("{:x}", location.address), |line| function(line.function_id))
        };
        let stack = |sample: &Sample| sample.location_id.iter().map(name).collect();
        self.sample.iter().map(|sample| (stack(sample), sample.value.clone())).collect()
    }
}
