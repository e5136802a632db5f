//! The part of msgpack that the protocol uses, without extension types; and frames of reports.

use std::io::{Error, ErrorKind, Read, Result};

// A frame of a sidecar has far less: 1,000 records of some 12 keys, on 3 levels.
const MAX_FRAME_BYTES: u64 = 16 * 1024 * 1024;
const MAX_VALUES: u64 = 400_000;
const MAX_DEPTH: u32 = 32;

pub enum Value {
    Text(String),
    Natural(u64),
    Float(f64),
    Bool(bool),
    Array(Vec<Value>),
    Map(Vec<Value>), // key, value, key, value and so on
    Other,           // nil, a negative number or bytes: nothing here needs them
}

impl Value {
    /// The value of a key of this map; `Other` if there is none.
    pub fn get(&self, key: &str) -> &Value {
        let mut pairs = self.items().chunks_exact(2);
        let pair = pairs.find(|pair| pair[0].text() == Some(key));
        pair.map_or(&Value::Other, |pair| &pair[1])
    }

    pub fn items(&self) -> &[Value] {
        match self {
            Value::Array(items) | Value::Map(items) => items,
            _ => &[],
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn natural(&self) -> Option<u64> {
        match self {
            Value::Natural(number) => Some(*number),
            _ => None,
        }
    }
}

/// Read one frame, in whatever pieces it comes. Memory grows with the bytes that arrive, not
/// with the lengths that they announce. The error of broken bytes is `InvalidData`.
pub fn read_frame(stream: &mut impl Read) -> Result<Value> {
    let mut limited = stream.take(MAX_FRAME_BYTES);
    match read_value(&mut limited, MAX_DEPTH, &mut { MAX_VALUES }) {
        Err(_) if limited.limit() == 0 => Err(broken("too many bytes")),
        result => result,
    }
}

fn read_value(stream: &mut impl Read, levels_left: u32, values_left: &mut u64) -> Result<Value> {
    *values_left = values_left.checked_sub(1).ok_or_else(|| broken("too many values"))?;
    let code = read_number(stream, 1)? as u8;
    let width = match code {
        0xc4 | 0xcc | 0xd0 | 0xd9 => 1,
        0xc5 | 0xcd | 0xd1 | 0xda | 0xdc | 0xde => 2,
        0xc6 | 0xca | 0xce | 0xd2 | 0xdb | 0xdd | 0xdf => 4,
        0xcb | 0xcf | 0xd3 => 8,
        0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => return Err(broken("an extension type")),
        _ => 0,
    };
    let number = match code {
        0x80..=0x9f => u64::from(code & 15),
        0xa0..=0xbf => u64::from(code & 31),
        _ => read_number(stream, width)?,
    };
    let mut items = |len: u64| -> Result<Vec<Value>> {
        let levels_left = levels_left.checked_sub(1).ok_or_else(|| broken("too many levels"))?;
        (0..len).map(|_| read_value(stream, levels_left, values_left)).collect()
    };
    Ok(match code {
        0x00..=0x7f => Value::Natural(code.into()),
        0x80..=0x8f | 0xde | 0xdf => Value::Map(items(number * 2)?),
        0x90..=0x9f | 0xdc | 0xdd => Value::Array(items(number)?),
        0xa0..=0xbf | 0xc4..=0xc6 | 0xd9..=0xdb => {
            let mut bytes = Vec::new();
            if (stream.take(number).read_to_end(&mut bytes)? as u64) < number {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            match code {
                0xc4..=0xc6 => Value::Other,
                _ => Value::Text(String::from_utf8(bytes).map_err(|_| broken("no UTF-8"))?),
            }
        }
        0xc2 | 0xc3 => Value::Bool(code == 0xc3),
        0xca => Value::Float(f32::from_bits(number as u32).into()),
        0xcb => Value::Float(f64::from_bits(number)),
        0xcc..=0xcf => Value::Natural(number),
        0xd0..=0xd3 if number >> (8 * width - 1) == 0 => Value::Natural(number),
        _ => Value::Other,
    })
}

fn read_number(stream: &mut impl Read, width: usize) -> Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes[8 - width..])?;
    Ok(u64::from_be_bytes(bytes))
}

pub fn broken(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the sidecar sent a frame with {what}"))
}

/// Append a frame of a name and one value.
pub fn put_frame(out: &mut Vec<u8>, name: &str, value: &Value) {
    put_len(out, 0xdd, 2);
    put_text(out, name);
    put(out, value);
}

fn put(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Text(text) => put_text(out, text),
        Value::Natural(number) => put_bits(out, 0xcf, *number),
        Value::Float(number) => put_bits(out, 0xcb, number.to_bits()),
        Value::Bool(is_true) => out.push(0xc2 | u8::from(*is_true)),
        Value::Array(items) => put_len(out, 0xdd, items.len()),
        Value::Map(items) => put_len(out, 0xdf, items.len() / 2),
        Value::Other => out.push(0xc0), // nil
    }
    value.items().iter().for_each(|item| put(out, item));
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_len(out, 0xdb, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn put_len(out: &mut Vec<u8>, code: u8, len: usize) {
    out.push(code);
    out.extend_from_slice(&(len as u32).to_be_bytes());
}

fn put_bits(out: &mut Vec<u8>, code: u8, bits: u64) {
    out.push(code);
    out.extend_from_slice(&bits.to_be_bytes());
}

/// What is reported of a connection; of several the greatest matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    #[default]
    None,
    Keepalive,
    Message,
    Login,
    Logout,
}

/// A frame of reports that is being put together: its arrays are encoded already.
#[derive(Default)]
pub struct Batch {
    pub kind: (Event, f64, f64), // with the timeout and age, 0 for none
    len: usize,
    uids: Vec<u8>,
    conns: Vec<u8>,
    began: Vec<u8>,
}

impl Batch {
    pub fn add(&mut self, uid: &str, conn: u64, began: Option<f64>) {
        self.len += 1;
        put_text(&mut self.uids, uid);
        put_bits(&mut self.conns, 0xcf, conn);
        began.into_iter().for_each(|began| put_bits(&mut self.began, 0xcb, began.to_bits()));
    }

    /// Whether one more connection may be too much. It takes up to 278 bytes, and what is not
    /// in the arrays less than 100.
    pub fn is_full(&self, max_batch: usize, max_frame: usize) -> bool {
        let size = self.uids.len() + self.conns.len() + self.began.len();
        self.len >= max_batch || size + 378 > max_frame
    }

    /// Append the frame, if it has any connection, and begin another.
    pub fn put(&mut self, out: &mut Vec<u8>) {
        let Batch { kind: (event, timeout, age), len, uids, conns, began } = std::mem::take(self);
        if len == 0 {
            return;
        }
        put_len(out, 0xdd, 3);
        put_text(out, ["", "keepalive", "message", "login", "logout"][event as usize]);
        put_len(out, 0xdd, len);
        out.extend_from_slice(&uids);
        let options = [!began.is_empty(), timeout > 0.0, age > 0.0];
        put_len(out, 0xdf, 1 + options.iter().filter(|is_given| **is_given).count());
        for (key, items) in [("conn", &conns), ("began", &began)] {
            if !items.is_empty() {
                put_text(out, key);
                put_len(out, 0xdd, len);
                out.extend_from_slice(items);
            }
        }
        for (key, number) in [("timeout", timeout), ("age", age)] {
            if number > 0.0 {
                put_text(out, key);
                put_bits(out, 0xcb, number.to_bits());
            }
        }
    }
}

/// Whether it is 1 to so many bytes without control characters.
pub fn is_text(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len()) && !text.bytes().any(|byte| byte < 0x20 || byte == 0x7f)
}
