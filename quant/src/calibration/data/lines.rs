//! Lines of a data file: all checked once, then read again in shuffled order. Only their places are kept, so the
//! size of the file does not matter.

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::Path;

use verify::{Digest, Error, Result, Shown, checksum};

use super::entry::Entry;

/// Longest line: as long as a text may be that is tokenized.
const MAX_LINE: u64 = 16 << 20;

/// U+FEFF in UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// What the built-in set is called.
pub const BUILT_IN_SOURCE: &str = "built-in set";

trait Input: BufRead + Seek {}

impl<T: BufRead + Seek> Input for T {}

/// The lines of one file that are not blank.
pub struct Lines {
    input: Box<dyn Input>,
    places: Vec<Place>,
    /// What the data are called in messages.
    pub source: String,
    /// sha256 of the file.
    pub sha256: Digest,
}

#[derive(Clone, Copy)]
struct Place {
    begin: u64,
    len: u64,
    number: usize,
}

impl Lines {
    /// Opens `path` and checks every line.
    ///
    /// # Errors
    /// Exit 3 for a missing file, or naming the first line that is no sample.
    pub fn open(path: &Path) -> Result<Self> {
        // Asked before it is opened: opening a pipe waits for whoever writes into it.
        let meta = std::fs::metadata(path).map_err(|e| Error::io("read", path, &e))?;
        if !meta.is_file() {
            return Err(Error::input(format!("{} is not a regular file", Shown::path(path)))
                .expected("a JSONL file of samples"));
        }
        let file = File::open(path).map_err(|e| Error::io("read", path, &e))?;
        let sha256 = checksum::of_file(path)?;
        Self::check(Box::new(BufReader::new(file)), Shown::path(path), sha256)
    }

    /// The lines of `text`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn built_in(text: &'static str) -> Result<Self> {
        Self::check(Box::new(Cursor::new(text)), BUILT_IN_SOURCE.into(), Digest::of(text.as_bytes()))
    }

    fn check(mut input: Box<dyn Input>, source: String, sha256: Digest) -> Result<Self> {
        let (mut begin, mut number, mut places) = (0, 0, Vec::new());
        let mut line = Vec::new();
        loop {
            line.clear();
            number += 1;
            let place = || format!("{source} line {number}");
            let read = input.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line);
            let len = read.map_err(|e| unreadable(&e).at(place()))? as u64;
            if len == 0 {
                break;
            }
            if len > MAX_LINE {
                return Err(Error::input("is too long")
                    .expected(format!("at most {MAX_LINE} bytes"))
                    .at(place()));
            }
            // Windows editors leave a byte order mark before the first line.
            let mark = if begin == 0 && line.starts_with(MARK) { MARK.len() } else { 0 };
            if !line[mark..].trim_ascii().is_empty() {
                Entry::parse(&line[mark..]).map_err(|e| e.at(place()))?;
                places.push(Place { begin: begin + mark as u64, len: len - mark as u64, number });
            }
            begin += len;
        }
        Ok(Lines { input, places, source, sha256 })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Brings them into an order that depends on `seed` and their number alone.
    pub fn shuffle(&mut self, seed: u64) {
        let mut random = SplitMix(seed);
        for last in (1..self.places.len()).rev() {
            // The bias of a remainder is below 2^-40 for any file that fits a disk.
            let other = (random.next() % (last as u64 + 1)) as usize;
            self.places.swap(last, other);
        }
    }

    /// Number `at` in today's order, with its place for messages.
    ///
    /// # Errors
    /// Exit 3 or 5 where the file changed meanwhile.
    pub fn entry(&mut self, at: usize) -> Result<(String, Entry)> {
        let Place { begin, len, number } = self.places[at];
        let place = format!("{} line {number}", self.source);
        let mut line = vec![0; len as usize];
        let read = self.input.seek(SeekFrom::Start(begin)).and_then(|_| self.input.read_exact(&mut line));
        read.map_err(|e| unreadable(&e).at(&place))?;
        let entry = Entry::parse(&line).map_err(|e| e.at(&place))?;
        Ok((place, entry))
    }
}

fn unreadable(e: &std::io::Error) -> Error {
    Error::new(verify::Class::Disk, "cannot be read").found(e.to_string())
}

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers on every machine.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &mut Lines) -> Vec<String> {
        (0..lines.count())
            .map(|i| match lines.entry(i).unwrap().1 {
                Entry::Text(text) => text,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn generator_is_the_published_one() {
        let mut random = SplitMix(1_234_567);
        assert_eq!((random.next(), random.next()), (6_457_827_717_110_365_317, 3_203_168_211_198_807_973));
    }

    #[test]
    fn order_depends_on_the_seed_alone() {
        let text: String = (0..50).map(|i| format!("{{\"text\": \"{i}\"}}\n")).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        std::fs::write(&path, text).unwrap();
        let order = |seed| {
            let mut lines = Lines::open(&path).unwrap();
            lines.shuffle(seed);
            texts(&mut lines)
        };
        assert_eq!(order(3), order(3));
        assert_ne!(order(3), order(4));
        let mut sorted = order(3);
        sorted.sort_by_key(|t| t.parse::<u32>().unwrap());
        assert_eq!(sorted, (0..50).map(|i| i.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn blank_lines_count_as_lines_only() {
        let mut lines = Lines::built_in("\n{\"text\": \"a\"}\r\n \n{\"text\": \"b\"}").unwrap();
        assert_eq!(texts(&mut lines), ["a", "b"]);
        assert_eq!(lines.entry(1).unwrap().0, "built-in set line 4");
    }

    #[test]
    fn byte_order_mark_is_passed_over_at_the_start_only() {
        let mut lines = Lines::built_in("\u{feff}{\"text\": \"a\"}\n{\"text\": \"b\"}\n").unwrap();
        assert_eq!(texts(&mut lines), ["a", "b"]);
        assert_eq!(Lines::built_in("\u{feff}\n{\"text\": \"b\"}").unwrap().count(), 1);
        assert!(Lines::built_in("{\"text\": \"a\"}\n\u{feff}{\"text\": \"b\"}").is_err());
    }

    #[test]
    fn fault_names_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.jsonl");
        std::fs::write(&path, "{\"text\": \"a\"}\n\n{\"text\": \"b\"\n{\"text\": \"c\"}\n").unwrap();
        let e = Lines::open(&path).err().unwrap();
        assert!(e.what().contains("data.jsonl line 3: is no JSON"), "{e}");
        assert_eq!(e.class().exit_code(), 3);
        for missing in [dir.path().join("none"), dir.path().to_path_buf()] {
            assert_eq!(Lines::open(&missing).err().unwrap().class().exit_code(), 3);
        }
    }

    #[test]
    fn endless_line_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.jsonl");
        std::fs::write(&path, "x".repeat(MAX_LINE as usize + 1)).unwrap();
        assert!(Lines::open(&path).err().unwrap().what().contains("line 1: is too long"));
    }
}
