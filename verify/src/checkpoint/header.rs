//! The header of a safetensors file, checked more strictly than the `safetensors` crate does
//! (which lets a repeated name through and takes any bytes as a name).
//!
//! Source: safetensors format text, 8-byte little-endian length, JSON, data.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::tensor::TensorSpec;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::names::Shown;

/// Largest header that is read, as in the safetensors library.
pub const MAX_HEADER: u64 = 100_000_000;
const MAX_NAME: usize = 4096;

/// One tensor of a header, with where its bytes lie after the header.
#[derive(Debug, Clone, PartialEq)]
pub struct HeaderTensor {
    /// Name, type and shape.
    pub spec: TensorSpec,
    /// First byte, counted from the end of the header.
    pub begin: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A header whose tensors cover the data exactly, in file order.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Tensors in the order of their bytes.
    pub tensors: Vec<HeaderTensor>,
    /// `__metadata__`, in file order.
    pub metadata: Vec<(String, String)>,
}

/// The length of the JSON of a header, from the first bytes of a file of `file_len` bytes at `place`.
///
/// # Errors
/// Exit 3 where no such header fits into the file.
pub fn json_len(first: &[u8], file_len: u64, place: &str) -> Result<u64> {
    let broken = |what: String| {
        Error::input(format!("{}: {what}", Shown(place)))
            .hint("the file is cut or is no safetensors file: fetch it again")
    };
    let first = first.first_chunk::<8>().filter(|_| file_len >= 8);
    let first =
        first.ok_or_else(|| broken(format!("{file_len} bytes are too short for a safetensors file")))?;
    match u64::from_le_bytes(*first) {
        len if len <= MAX_HEADER && len <= file_len - 8 => Ok(len),
        len => Err(broken("its header does not fit".into())
            .found(format!("a header of {len} bytes in a file of {file_len}"))
            .expected(format!("at most {MAX_HEADER} bytes, all inside the file"))),
    }
}

impl Header {
    /// Parses the JSON of a header in a file that holds `data_len` bytes after it; `file` names it in messages.
    ///
    /// # Errors
    /// Refuses repeated, empty, overlong or unprintable names, unknown dtypes, shapes that overflow,
    /// lengths that do not equal shape x dtype, and data that overlaps, leaves holes or trails.
    pub fn parse(json: &[u8], data_len: u64, file: &str) -> Result<Self> {
        let raw: RawHeader = serde_json::from_slice(json)
            .map_err(|e| broken(file, "its header is not valid").found(e.to_string()))?;
        let mut seen = HashSet::with_capacity(raw.tensors.len());
        let mut tensors = Vec::with_capacity(raw.tensors.len());
        for (name, entry) in raw.tensors {
            check_name(&name, file)?;
            if !seen.insert(name.clone()) {
                return Err(broken(file, &format!("tensor `{}` appears twice in its header", Shown(&name))));
            }
            tensors.push(check_entry(name, &entry, data_len, file)?);
        }
        // Empty tensors share an offset with their neighbour; the stable sort keeps them in header order.
        tensors.sort_by_key(|t| (t.begin, t.begin + t.len));
        check_cover(&tensors, data_len, file)?;
        Ok(Header { tensors, metadata: raw.metadata })
    }
}

fn broken(file: &str, what: &str) -> Error {
    Error::input(format!("{}: {what}", Shown(file)))
        .hint("the file is corrupt or was tampered with: fetch it again")
}

fn check_name(name: &str, file: &str) -> Result<()> {
    let reason = if name.is_empty() {
        "an empty tensor name"
    } else if name.len() > MAX_NAME {
        "a tensor name over 4096 bytes"
    } else if name.chars().any(char::is_control) {
        "control characters in a tensor name"
    } else {
        return Ok(());
    };
    Err(broken(file, &format!("tensor name `{}` is refused", Shown(name))).found(reason))
}

fn check_entry(name: String, entry: &RawEntry, data_len: u64, file: &str) -> Result<HeaderTensor> {
    let fail = |why: &str| broken(file, &format!("tensor `{}`: {why}", Shown(&name)));
    let dtype = Dtype::parse(&entry.dtype)
        .ok_or_else(|| fail("its dtype is unknown").found(format!("{}", Shown(&entry.dtype))))?;
    let mut shape = Vec::with_capacity(entry.shape.len());
    let mut elements = 1usize;
    for &d in &entry.shape {
        let d = usize::try_from(d).map_err(|_| fail("its shape overflows"))?;
        elements = elements.checked_mul(d).ok_or_else(|| fail("its shape overflows"))?;
        shape.push(d);
    }
    let want = dtype.bytes(elements).ok_or_else(|| fail("its elements do not fill whole bytes"))? as u64;
    let [begin, end] = entry.data_offsets;
    if begin > end || end > data_len {
        return Err(fail("its bytes lie outside the file")
            .found(format!("offsets {begin} to {end}"))
            .expected(format!("within 0 to {data_len}")));
    }
    if end - begin != want {
        return Err(fail("its length does not fit its shape")
            .found(format!("{} bytes", end - begin))
            .expected(format!("{want} bytes for {dtype} {shape:?}")));
    }
    Ok(HeaderTensor { spec: TensorSpec { name, dtype, shape }, begin, len: want })
}

fn check_cover(tensors: &[HeaderTensor], data_len: u64, file: &str) -> Result<()> {
    let mut at = 0;
    for t in tensors {
        if t.begin != at {
            let what = if t.begin < at { "overlaps the tensor before it" } else { "leaves a hole before it" };
            return Err(broken(file, &format!("tensor `{}` {what}", Shown(&t.spec.name)))
                .found(format!("begin {}", t.begin))
                .expected(format!("begin {at}")));
        }
        at = t.begin + t.len;
    }
    if at == data_len {
        return Ok(());
    }
    Err(broken(file, "the file does not end where its last tensor ends")
        .found(format!("{data_len} bytes of data"))
        .expected(format!("{at} bytes")))
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Entries in file order, repeats kept: a map type would hide them.
struct RawHeader {
    tensors: Vec<(String, RawEntry)>,
    metadata: Vec<(String, String)>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut out = RawHeader { tensors: Vec::new(), metadata: Vec::new() };
        while let Some(key) = map.next_key::<String>()? {
            if key == "__metadata__" {
                out.metadata = map.next_value::<Pairs>()?.0;
            } else {
                out.tensors.push((key, map.next_value()?));
            }
        }
        Ok(out)
    }
}

struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut out = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    out.push(pair);
                }
                Ok(Pairs(out))
            }
        }
        d.deserialize_map(PairsVisitor)
    }
}

/// The header of a file that holds `tensors` in this order, padded with spaces to 8 bytes,
/// its own 8-byte length included.
pub fn encode<'a>(tensors: impl Iterator<Item = &'a TensorSpec>) -> Vec<u8> {
    let mut json = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut at = 0u64;
    for t in tensors {
        let end = at + t.byte_len();
        let name = serde_json::Value::String(t.name.clone());
        let shape = t.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        json.push_str(&format!(
            ",{name}:{{\"dtype\":\"{}\",\"shape\":[{shape}],\"data_offsets\":[{at},{end}]}}",
            t.dtype
        ));
        at = end;
    }
    json.push('}');
    while json.len() % 8 != 0 {
        json.push(' ');
    }
    let mut out = (json.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(json.as_bytes());
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(json: &str, data_len: u64) -> Result<Header> {
        Header::parse(json.as_bytes(), data_len, "x.safetensors")
    }

    const A: &str = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;

    #[test]
    fn good_header_is_read_in_file_order() {
        let b = r#""b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}"#;
        let h = parse(&format!("{{{b},{A}}}"), 11).unwrap();
        assert_eq!(h.tensors.iter().map(|t| t.spec.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn broken_headers_are_refused() {
        for (why, json, len) in [
            ("twice", format!("{{{A},{A}}}"), 8),
            ("trailing", format!("{{{A}}}"), 9),
            ("short", format!("{{{A}}}"), 7),
            ("hole", r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#.into(), 2),
            ("overlap", format!(r#"{{{A},"b":{{"dtype":"U8","shape":[1],"data_offsets":[7,8]}}}}"#), 8),
            ("length", r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#.into(), 8),
            (
                "overflow",
                r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#.into(),
                0,
            ),
            ("negative", r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}"#.into(), 8),
            ("reversed", r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#.into(), 8),
            ("dtype", r#"{"a":{"dtype":"Q4","shape":[2],"data_offsets":[0,8]}}"#.into(), 8),
            ("odd F4", r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#.into(), 1),
            ("escape", r#"{"\u001b[31m":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#.into(), 8),
            ("empty name", r#"{"":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#.into(), 8),
            ("array", "[]".into(), 0),
            ("number in metadata", r#"{"__metadata__":{"a":1}}"#.into(), 0),
            ("deep", format!("{{\"a\":{}1{}}}", "[".repeat(300), "]".repeat(300)), 0),
        ] {
            assert!(parse(&json, len).is_err(), "{why}");
        }
    }

    #[test]
    fn long_name_is_refused() {
        let json =
            format!(r#"{{"{}":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}}}"#, "n".repeat(5000));
        assert!(parse(&json, 8).is_err());
    }

    #[test]
    fn empty_and_scalar_tensors_are_read() {
        let json = r#"{"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"z":{"dtype":"F32","shape":[0,5],"data_offsets":[4,4]}}"#;
        assert_eq!(parse(json, 4).unwrap().tensors.len(), 2);
    }

    #[test]
    fn encoded_header_reads_back() {
        let specs = [
            TensorSpec { name: "a\"b".into(), dtype: Dtype::BF16, shape: vec![2, 3] },
            TensorSpec { name: "c".into(), dtype: Dtype::F32, shape: vec![] },
        ];
        let bytes = encode(specs.iter());
        assert_eq!(bytes.len() % 8, 0);
        let h = Header::parse(&bytes[8..], 16, "x").unwrap();
        assert_eq!(h.tensors.iter().map(|t| &t.spec).collect::<Vec<_>>(), specs.iter().collect::<Vec<_>>());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn mutated_header_never_panics_nor_reads_outside(at in 0usize..200, byte: u8, cut in 0usize..200, len in 0u64..40) {
            let mut json = format!(r#"{{"__metadata__":{{"format":"pt"}},{A},"b":{{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]}}}}"#).into_bytes();
            if at < json.len() { json[at] = byte; }
            json.truncate(json.len().saturating_sub(cut));
            if let Ok(h) = Header::parse(&json, len, "x") {
                prop_assert!(h.tensors.iter().all(|t| t.begin + t.len <= len));
            }
        }
    }
}
