//! Python's `dict` with string keys: first position, last value.

use std::collections::HashMap;

use super::Json;

/// Entries looked up one by one as long as there are no more than this.
const FEW: usize = 16;

/// An ordered map; writing a key twice keeps its first position and its last value.
#[derive(Debug, Clone, Default)]
pub struct Dict {
    entries: Vec<(String, Json)>,
    /// Filled once there are more than [`FEW`] entries.
    places: HashMap<String, usize>,
}

impl PartialEq for Dict {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Dict {
    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.place(key).map(|at| &self.entries[at].1)
    }

    /// Writes `value` under `key`.
    pub fn insert(&mut self, key: String, value: Json) {
        if let Some(at) = self.place(&key) {
            self.entries[at].1 = value;
            return;
        }
        if !self.places.is_empty() {
            self.places.insert(key.clone(), self.entries.len());
        }
        self.entries.push((key, value));
        if self.places.is_empty() && self.entries.len() > FEW {
            self.places = self.entries.iter().enumerate().map(|(at, (key, _))| (key.clone(), at)).collect();
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values in the order of first writing.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// As [`Dict::iter`], values writable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Json)> {
        self.entries.iter_mut().map(|(key, value)| (key.as_str(), value))
    }

    /// As [`Dict::get`], writable.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut Json> {
        self.place(key).map(|at| &mut self.entries[at].1)
    }

    fn place(&self, key: &str) -> Option<usize> {
        if self.places.is_empty() {
            self.entries.iter().position(|(known, _)| known == key)
        } else {
            self.places.get(key).copied()
        }
    }
}

impl FromIterator<(String, Json)> for Dict {
    fn from_iter<I: IntoIterator<Item = (String, Json)>>(pairs: I) -> Self {
        let mut dict = Dict::default();
        for (key, value) in pairs {
            dict.insert(key, value);
        }
        dict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_key_keeps_first_place_and_last_value() {
        for others in [1, 40] {
            let mut dict = Dict::default();
            dict.insert("a".into(), Json::Bool(true));
            for n in 0..others {
                dict.insert(format!("k{n}"), Json::Null);
            }
            dict.insert("a".into(), Json::Bool(false));
            dict.insert("k0".into(), Json::Bool(false));
            assert_eq!(dict.len(), others + 1);
            assert_eq!(dict.iter().next(), Some(("a", &Json::Bool(false))));
            assert_eq!(dict.get("k0"), Some(&Json::Bool(false)));
        }
    }
}
