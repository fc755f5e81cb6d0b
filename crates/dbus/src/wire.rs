//! Messages as bytes: <https://dbus.freedesktop.org/doc/dbus-specification.html>, little-endian on the way out, both on the
//! way in. Pure.

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a message ends before its end")]
    Cut,
    #[error("a message without a beginning")]
    Empty,
    #[error("a message of {0} bytes is too long")]
    Long(usize),
    #[error("a message of kind {0}")]
    Kind(u8),
    #[error("a message in byte order {0:#x}")]
    Order(u8),
    #[error(transparent)]
    Text(#[from] std::string::FromUtf8Error),
    #[error("values are nested too deeply")]
    Deep,
    #[error("a type is missing")]
    NoType,
    #[error("a structure does not end")]
    OpenStruct,
    #[error("a structure of nothing")]
    EmptyStruct,
    #[error("an entry does not end")]
    OpenEntry,
    #[error("an array of nothing")]
    EmptyArray,
    #[error("a value of type {0:?}")]
    Type(char),
}

/// A value of any type that systemd uses.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Byte(u8),
    Bool(bool),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    U64(u64),
    F64(f64),
    Text(String),
    Path(String),
    Signature(String),
    /// A descriptor, by its place among those that came with the message.
    Descriptor(u32),
    /// All of one type, which stands first: an empty array has one, too.
    Array(String, Vec<Value>),
    Struct(Vec<Value>),
    Entry(Box<(Value, Value)>),
    Variant(Box<Value>),
}

impl Value {
    pub fn text(text: impl Into<String>) -> Self {
        Value::Text(text.into())
    }

    pub fn texts<'a>(list: impl IntoIterator<Item = &'a str>) -> Self {
        Value::Array("s".into(), list.into_iter().map(Value::text).collect())
    }

    pub fn variant(value: Value) -> Self {
        Value::Variant(Box::new(value))
    }

    pub fn signature(&self) -> String {
        match self {
            Value::Byte(_) => "y".into(),
            Value::Bool(_) => "b".into(),
            Value::U16(_) => "q".into(),
            Value::I32(_) => "i".into(),
            Value::U32(_) => "u".into(),
            Value::I64(_) => "x".into(),
            Value::U64(_) => "t".into(),
            Value::F64(_) => "d".into(),
            Value::Text(_) => "s".into(),
            Value::Path(_) => "o".into(),
            Value::Signature(_) => "g".into(),
            Value::Descriptor(_) => "h".into(),
            Value::Array(of, _) => format!("a{of}"),
            Value::Struct(fields) => format!("({})", fields.iter().map(Value::signature).collect::<String>()),
            Value::Entry(pair) => format!("{{{}{}}}", pair.0.signature(), pair.1.signature()),
            Value::Variant(_) => "v".into(),
        }
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Call = 1,
    Answer = 2,
    Error = 3,
    Signal = 4,
}

/// One message without its descriptors.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub kind: Kind,
    pub serial: u32,
    pub reply_serial: Option<u32>,
    pub path: Option<String>,
    pub interface: Option<String>,
    pub member: Option<String>,
    pub error: Option<String>,
    pub destination: Option<String>,
    pub sender: Option<String>,
    pub descriptors: u32,
    pub body: Vec<Value>,
}

impl Message {
    pub fn new(kind: Kind) -> Self {
        Message {
            kind,
            serial: 0,
            reply_serial: None,
            path: None,
            interface: None,
            member: None,
            error: None,
            destination: None,
            sender: None,
            descriptors: 0,
            body: Vec::new(),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Writer::default();
        self.body.iter().for_each(|value| body.put(value));
        let signature: String = self.body.iter().map(Value::signature).collect();
        let text = |value: &Option<String>| value.clone().map(Value::Text);
        let fields = [
            (1, self.path.clone().map(Value::Path)),
            (2, text(&self.interface)),
            (3, text(&self.member)),
            (4, text(&self.error)),
            (5, self.reply_serial.map(Value::U32)),
            (6, text(&self.destination)),
            (8, (!signature.is_empty()).then_some(Value::Signature(signature))),
            (9, (self.descriptors > 0).then_some(Value::U32(self.descriptors))),
        ];
        let fields = fields
            .into_iter()
            .filter_map(|(code, value)| Some(Value::Struct(vec![Value::Byte(code), Value::variant(value?)])))
            .collect();
        let mut head = Writer { bytes: vec![b'l', self.kind as u8, 0, 1] };
        head.put(&Value::U32(body.bytes.len() as u32));
        head.put(&Value::U32(self.serial));
        head.put(&Value::Array("(yv)".into(), fields));
        head.align(8);
        head.bytes.extend(body.bytes);
        head.bytes
    }

    /// How long the message is whose first sixteen bytes these are.
    pub(crate) fn length(head: &[u8; 16]) -> Result<usize, Malformed> {
        let mut reader = Reader { bytes: head, at: 4, is_big: is_big(head[0])? };
        let body = reader.u32()? as usize;
        reader.u32()?;
        let fields = reader.u32()? as usize;
        if body > MAX_MESSAGE || fields > MAX_MESSAGE {
            return Err(Malformed::Long(body));
        }
        Ok((16 + fields).next_multiple_of(8) + body)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let [order, kind, ..] = bytes else { return Err(Malformed::Empty) };
        let mut reader = Reader { bytes, at: 4, is_big: is_big(*order)? };
        let mut message = Message::new(match kind {
            1 => Kind::Call,
            2 => Kind::Answer,
            3 => Kind::Error,
            4 => Kind::Signal,
            other => return Err(Malformed::Kind(*other)),
        });
        reader.u32()?;
        message.serial = reader.u32()?;
        let Value::Array(_, fields) = reader.value(&mut "a(yv)".chars().peekable())? else {
            return Err(Malformed::Cut);
        };
        let mut signature = String::new();
        for field in fields {
            let Value::Struct(parts) = field else { continue };
            let [Value::Byte(code), Value::Variant(value)] = parts.as_slice() else { continue };
            match (code, value.as_ref().clone()) {
                (1, Value::Path(text)) => message.path = Some(text),
                (2, Value::Text(text)) => message.interface = Some(text),
                (3, Value::Text(text)) => message.member = Some(text),
                (4, Value::Text(text)) => message.error = Some(text),
                (5, Value::U32(serial)) => message.reply_serial = Some(serial),
                (6, Value::Text(text)) => message.destination = Some(text),
                (7, Value::Text(text)) => message.sender = Some(text),
                (8, Value::Signature(text)) => signature = text,
                (9, Value::U32(count)) => message.descriptors = count,
                _ => {}
            }
        }
        reader.align(8)?;
        let mut types = signature.chars().peekable();
        while types.peek().is_some() {
            message.body.push(reader.value(&mut types)?);
        }
        Ok(message)
    }
}

/// More than systemd ever says.
const MAX_MESSAGE: usize = 8 << 20;
/// Values inside values; a peer could nest them until the stack is full.
const MAX_DEPTH: usize = 32;

fn is_big(order: u8) -> Result<bool, Malformed> {
    match order {
        b'l' => Ok(false),
        b'B' => Ok(true),
        other => Err(Malformed::Order(other)),
    }
}

/// Where a type begins.
fn alignment(kind: char) -> usize {
    match kind {
        'y' | 'g' | 'v' => 1,
        'q' | 'n' => 2,
        'x' | 't' | 'd' | '(' | '{' => 8,
        _ => 4,
    }
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    fn fixed(&mut self, bytes: &[u8]) {
        self.align(bytes.len());
        self.bytes.extend(bytes);
    }

    fn put(&mut self, value: &Value) {
        match value {
            Value::Byte(number) => self.bytes.push(*number),
            Value::Bool(is_true) => self.fixed(&u32::from(*is_true).to_le_bytes()),
            Value::U16(number) => self.fixed(&number.to_le_bytes()),
            Value::I32(number) => self.fixed(&number.to_le_bytes()),
            Value::U32(number) | Value::Descriptor(number) => self.fixed(&number.to_le_bytes()),
            Value::I64(number) => self.fixed(&number.to_le_bytes()),
            Value::U64(number) => self.fixed(&number.to_le_bytes()),
            Value::F64(number) => self.fixed(&number.to_le_bytes()),
            Value::Text(text) | Value::Path(text) => {
                self.fixed(&(text.len() as u32).to_le_bytes());
                self.bytes.extend(text.as_bytes());
                self.bytes.push(0);
            }
            Value::Signature(text) => {
                self.bytes.push(text.len() as u8);
                self.bytes.extend(text.as_bytes());
                self.bytes.push(0);
            }
            Value::Array(of, values) => {
                self.fixed(&0u32.to_le_bytes());
                let length_at = self.bytes.len() - 4;
                self.align(alignment(of.chars().next().unwrap_or('y')));
                let start = self.bytes.len();
                values.iter().for_each(|value| self.put(value));
                let length = (self.bytes.len() - start) as u32;
                self.bytes[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
            }
            Value::Struct(fields) => {
                self.align(8);
                fields.iter().for_each(|value| self.put(value));
            }
            Value::Entry(pair) => {
                self.align(8);
                self.put(&pair.0);
                self.put(&pair.1);
            }
            Value::Variant(inner) => {
                self.put(&Value::Signature(inner.signature()));
                self.put(inner);
            }
        }
    }
}

type Types<'a> = std::iter::Peekable<std::str::Chars<'a>>;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    is_big: bool,
}

impl Reader<'_> {
    fn align(&mut self, to: usize) -> Result<(), Malformed> {
        self.at = self.at.next_multiple_of(to);
        if self.at > self.bytes.len() { Err(Malformed::Cut) } else { Ok(()) }
    }

    fn take(&mut self, count: usize) -> Result<&[u8], Malformed> {
        let end = self.at.checked_add(count).ok_or(Malformed::Cut)?;
        let bytes = self.bytes.get(self.at..end).ok_or(Malformed::Cut)?;
        self.at = end;
        Ok(bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.align(N)?;
        let mut bytes: [u8; N] = self.take(N)?.try_into().map_err(|_| Malformed::Cut)?;
        if self.is_big {
            bytes.reverse();
        }
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.fixed()?))
    }

    fn text(&mut self, length: usize) -> Result<String, Malformed> {
        let text = String::from_utf8(self.take(length)?.to_vec())?;
        self.take(1)?;
        Ok(text)
    }

    fn value(&mut self, types: &mut Types<'_>) -> Result<Value, Malformed> {
        self.nested(types, 0)
    }

    fn nested(&mut self, types: &mut Types<'_>, depth: usize) -> Result<Value, Malformed> {
        if depth > MAX_DEPTH {
            return Err(Malformed::Deep);
        }
        let kind = types.next().ok_or(Malformed::NoType)?;
        Ok(match kind {
            'y' => Value::Byte(self.fixed::<1>()?[0]),
            'b' => Value::Bool(self.u32()? != 0),
            'q' => Value::U16(u16::from_le_bytes(self.fixed()?)),
            'n' => Value::I32(i16::from_le_bytes(self.fixed()?).into()),
            'i' => Value::I32(i32::from_le_bytes(self.fixed()?)),
            'u' => Value::U32(self.u32()?),
            'x' => Value::I64(i64::from_le_bytes(self.fixed()?)),
            't' => Value::U64(u64::from_le_bytes(self.fixed()?)),
            'd' => Value::F64(f64::from_le_bytes(self.fixed()?)),
            'h' => Value::Descriptor(self.u32()?),
            's' | 'o' => {
                let length = self.u32()? as usize;
                let text = self.text(length)?;
                if kind == 's' { Value::Text(text) } else { Value::Path(text) }
            }
            'g' => {
                let length = self.fixed::<1>()?[0].into();
                Value::Signature(self.text(length)?)
            }
            'a' => self.array(types, depth)?,
            '(' => {
                self.align(8)?;
                let mut fields = Vec::new();
                while types.peek().is_some_and(|next| *next != ')') {
                    fields.push(self.nested(types, depth + 1)?);
                }
                types.next().ok_or(Malformed::OpenStruct)?;
                if fields.is_empty() {
                    // Few bytes would hold any number of them.
                    return Err(Malformed::EmptyStruct);
                }
                Value::Struct(fields)
            }
            '{' => {
                self.align(8)?;
                let pair = (self.nested(types, depth + 1)?, self.nested(types, depth + 1)?);
                types.next().filter(|end| *end == '}').ok_or(Malformed::OpenEntry)?;
                Value::Entry(Box::new(pair))
            }
            'v' => {
                let length = self.fixed::<1>()?[0].into();
                let signature = self.text(length)?;
                Value::variant(self.nested(&mut signature.chars().peekable(), depth + 1)?)
            }
            other => return Err(Malformed::Type(other)),
        })
    }

    fn array(&mut self, types: &mut Types<'_>, depth: usize) -> Result<Value, Malformed> {
        let of = element(types)?;
        let length = self.u32()? as usize;
        self.align(alignment(of.chars().next().unwrap_or('y')))?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or(Malformed::Cut)?;
        let mut values = Vec::new();
        while self.at < end {
            values.push(self.nested(&mut of.chars().peekable(), depth + 1)?);
        }
        Ok(Value::Array(of, values))
    }
}

/// Takes one whole type, such as `s`, `(yv)` or `a{sv}`.
fn element(types: &mut Types<'_>) -> Result<String, Malformed> {
    let mut element = String::new();
    let mut open = 0;
    loop {
        let next = types.next().ok_or(Malformed::EmptyArray)?;
        element.push(next);
        match next {
            '(' | '{' => open += 1,
            ')' | '}' => open -= 1,
            'a' => continue,
            _ => {}
        }
        if open <= 0 {
            return Ok(element);
        }
    }
}

/// Bytes of any bus: they are a message or refused.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_message(data: &[u8]) {
    if let Some(head) = data.first_chunk() {
        let _ = Message::length(head);
    }
    let _ = Message::decode(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        let property = |name: &str, value| Value::Struct(vec![Value::text(name), Value::variant(value)]);
        Message {
            serial: 7,
            path: Some("/org/freedesktop/systemd1".into()),
            interface: Some("org.freedesktop.systemd1.Manager".into()),
            member: Some("StartTransientUnit".into()),
            destination: Some("org.freedesktop.systemd1".into()),
            body: vec![
                Value::text("a.slice"),
                Value::Array(
                    "(sv)".into(),
                    vec![
                        property("Delegate", Value::Bool(true)),
                        property("PIDs", Value::Array("u".into(), vec![Value::U32(1), Value::U32(2)])),
                        property("CPUQuotaPerSecUSec", Value::U64(5)),
                    ],
                ),
                Value::Array("(sa(sv))".into(), Vec::new()),
                Value::Array(
                    "{sv}".into(),
                    vec![Value::Entry(Box::new((Value::text("k"), Value::variant(Value::F64(0.5)))))],
                ),
                Value::Byte(1),
                Value::I64(-1),
            ],
            ..Message::new(Kind::Call)
        }
    }

    #[test]
    fn messages_survive_the_way() {
        let bytes = message().encode();
        assert_eq!(Message::length(bytes[..16].try_into().unwrap()).unwrap(), bytes.len());
        assert_eq!(Message::decode(&bytes).unwrap(), message());
    }

    #[test]
    fn cut_messages_are_refused() {
        let bytes = message().encode();
        for end in 0..bytes.len() {
            assert!(Message::decode(&bytes[..end]).is_err(), "{end}");
        }
        let deep = Message {
            body: (0..40).fold(vec![Value::Byte(0)], |inner, _| vec![Value::variant(inner[0].clone())]),
            ..message()
        };
        assert_eq!(Message::decode(&deep.encode()), Err(Malformed::Deep));
    }

    #[test]
    fn security_damaged_messages_do_no_harm() {
        let good = message().encode();
        let mut empty = good.clone();
        empty.extend_from_slice(b"a()\0\xff\xff\xff\x7f");
        for input in testkit::mutate::inputs(&[&good, &empty], 20_000) {
            fuzz_message(&input);
        }
        // An array of structures without fields, of which a few bytes hold any number.
        let bytes = [[8, 0, 0, 0, 0, 0, 0, 0], [0; 8]].concat();
        let mut reader = Reader { bytes: &bytes, at: 0, is_big: false };
        assert_eq!(reader.value(&mut "a()".chars().peekable()), Err(Malformed::EmptyStruct));
        for signature in ["a()", "aa()", "(", "()", "a{}", "a{s", "v", &"a".repeat(200), &"(".repeat(200)] {
            let bytes = [0u8; 64].map(|_| 8);
            let mut reader = Reader { bytes: &bytes, at: 0, is_big: false };
            let _ = reader.value(&mut signature.chars().peekable());
        }
    }
}
