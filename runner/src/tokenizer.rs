//! `tokenizer.json`: text to token ids and back, loaded and used under guard.
//!
//! A tokenizer file can hold patterns that take for ever and rules that grow text without bound. So it is read with a
//! size limit, worked with on a thread of its own with a time limit, and its output is bounded by its input.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use verify::checkpoint::json;
use verify::{Error, Result, Shown};

/// The tokenizer of a model folder.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    file: String,
}

/// Longest text that is encoded.
const MAX_TEXT: usize = 16 << 20;
const LOAD_LIMIT: Duration = Duration::from_secs(60);
const ENCODE_LIMIT: Duration = Duration::from_secs(60);

impl Tokenizer {
    /// Reads `dir/tokenizer.json` and tries it on a short text.
    ///
    /// # Errors
    /// Exit 3 where the file is missing, broken, too large or too slow.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join("tokenizer.json");
        let text = json::read_text(&path, json::MAX_TOKENIZER)?;
        let file = Shown::path(&path);
        let mut inner = guarded(&file, LOAD_LIMIT, move || {
            text.parse::<tokenizers::Tokenizer>().map_err(|e| e.to_string())
        })?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| broken(&file, &e.to_string()))?;
        let tokenizer = Tokenizer { inner: Arc::new(inner), file };
        tokenizer.encode("The quick brown fox, 12 déjà-vu 你好\n  x")?;
        Ok(tokenizer)
    }

    /// Token ids of `text`: special tokens in it are recognised, none are added.
    ///
    /// # Errors
    /// Exit 3 where the text is too long or the tokenizer fails on it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_as(text, false)
    }

    /// Token ids of a text that stands alone, with the special tokens that the tokenizer puts around one (none, or a
    /// token for the beginning); a first token that the text already has is not added twice.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_document(&self, text: &str) -> Result<Vec<u32>> {
        let ids = self.encode_as(text, true)?;
        let first = self.encode_as("", true)?.first().copied();
        let twice = ids.len() > 1 && ids[0] == ids[1] && Some(ids[0]) == first;
        Ok(if twice { ids[1..].to_vec() } else { ids })
    }

    fn encode_as(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        if text.len() > MAX_TEXT {
            return Err(Error::input("the prompt is too long")
                .found(format!("{} bytes", text.len()))
                .expected(format!("at most {MAX_TEXT} bytes")));
        }
        let (inner, owned) = (Arc::clone(&self.inner), text.to_string());
        let ids = guarded(&self.file, ENCODE_LIMIT, move || {
            inner.encode_fast(owned, add_special).map(|e| e.get_ids().to_vec()).map_err(|e| e.to_string())
        })?;
        match ids.len() <= 4 * text.len() + 16 {
            true => Ok(ids),
            false => Err(broken(&self.file, "it makes more than four tokens of a byte")),
        }
    }

    /// The text of `ids`, special tokens included.
    ///
    /// # Errors
    /// Exit 3 where the tokenizer fails on them.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner.decode(ids, false).map_err(|e| broken(&self.file, &e.to_string()))
    }

    /// Text of tokens that arrive one by one.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, ids: Vec::new(), start: 0, told: 0 }
    }
}

/// Decodes token by token; text is held back while a character is still split between tokens.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    /// Decoding begins at this token: far enough back that its text no longer changes with what follows.
    start: usize,
    /// Tokens whose text was told.
    told: usize,
}

impl TextStream<'_> {
    /// Takes the next token; returns the text that is certain now, perhaps none.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        let all = self.tokenizer.decode(&self.ids[self.start..])?;
        // A split character is decoded as the replacement character.
        if all.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        self.tell(&all)
    }

    /// The rest, with the replacement character for what never became whole.
    ///
    /// # Errors
    /// As [`Tokenizer::decode`].
    pub fn finish(mut self) -> Result<String> {
        let all = self.tokenizer.decode(&self.ids[self.start..])?;
        self.tell(&all)
    }

    fn tell(&mut self, all: &str) -> Result<String> {
        let before = self.tokenizer.decode(&self.ids[self.start..self.told])?;
        self.start = self.told;
        self.told = self.ids.len();
        Ok(all.strip_prefix(&before).unwrap_or(all).to_string())
    }
}

/// Runs `work` on its own thread for at most `limit`. A thread that runs over is left behind: the program ends soon.
fn guarded<T: Send + 'static>(
    file: &str,
    limit: Duration,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T> {
    let (tell, told) = mpsc::sync_channel(1);
    let name = std::thread::Builder::new().name("tokenizer".into()).stack_size(16 << 20);
    let thread = name
        .spawn(move || {
            // Nobody listens once the limit has passed.
            let _ = tell.send(work());
        })
        .map_err(|e| Error::new(verify::Class::Disk, "cannot start a thread").found(e.to_string()))?;
    match told.recv_timeout(limit) {
        Ok(result) => result.map_err(|e| broken(file, &e)),
        Err(mpsc::RecvTimeoutError::Timeout) => Err(Error::input(format!("{file} takes too long"))
            .found(format!("no answer after {} s", limit.as_secs()))
            .hint("a pattern in this file is broken or malicious: fetch it again from a trusted place")),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let reason = thread.join().err().and_then(|p| p.downcast_ref::<String>().cloned());
            Err(broken(file, reason.as_deref().unwrap_or("it makes the tokenizers library panic")))
        }
    }
}

fn broken(file: &str, reason: &str) -> Error {
    Error::input(format!("{file} cannot be used"))
        .found(Shown(reason).to_string())
        .expected("the tokenizer.json of the model")
        .hint("fetch the file again")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/models/qwen3-moe/base");

    #[test]
    fn special_tokens_in_text_are_recognised_and_none_added() {
        let t = Tokenizer::open(Path::new(BASE)).unwrap();
        let ids = t.encode("<|im_start|>user\nhi<|im_end|>\n").unwrap();
        assert_eq!((ids[0], ids.contains(&2414)), (2413, true));
        assert_eq!(t.decode(&ids).unwrap(), "<|im_start|>user\nhi<|im_end|>\n");
        assert!(t.encode("").unwrap().is_empty());
    }

    #[test]
    fn beginning_of_a_document_is_added_once() {
        let plain = Tokenizer::open(Path::new(BASE)).unwrap();
        assert_eq!(plain.encode_document("hi").unwrap(), plain.encode("hi").unwrap());
        let text = std::fs::read_to_string(Path::new(BASE).join("tokenizer.json")).unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["post_processor"] = serde_json::json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [2413], "tokens": ["<|im_start|>"]}}
        });
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        let t = Tokenizer::open(dir.path()).unwrap();
        let hi = plain.encode("hi").unwrap();
        assert_eq!(t.encode("hi").unwrap(), hi);
        let with = [&[2413][..], &hi].concat();
        assert_eq!(t.encode_document("hi").unwrap(), with);
        assert_eq!(t.encode_document("<|im_start|>hi").unwrap(), with);
    }

    #[test]
    fn stream_tells_whole_characters_only() {
        let t = Tokenizer::open(Path::new(BASE)).unwrap();
        let text = "wetter 🌦️ in 云泉, çok güzel <tool_call>\n👩‍👩‍👧";
        let ids = t.encode(text).unwrap();
        let mut stream = t.stream();
        let pieces: Vec<String> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        assert!(pieces.iter().any(String::is_empty), "no character was split: the test shows nothing");
        assert!(pieces.iter().all(|p| !p.contains('\u{fffd}')));
        assert_eq!(pieces.concat() + &stream.finish().unwrap(), text);
    }

    #[test]
    fn cut_character_ends_as_replacement() {
        let t = Tokenizer::open(Path::new(BASE)).unwrap();
        let ids = t.encode("🌦").unwrap();
        let mut stream = t.stream();
        assert_eq!(stream.push(ids[0]).unwrap(), "");
        assert!(stream.finish().unwrap().contains('\u{fffd}'));
    }

    #[test]
    fn endless_work_is_refused() {
        let e = guarded("t.json", Duration::from_millis(20), || {
            std::thread::sleep(Duration::from_secs(1));
            Ok(())
        });
        assert!(e.unwrap_err().what().contains("too long"));
        let e = guarded::<()>("t.json", Duration::from_secs(5), || panic!("{}", "odd rule"));
        assert!(e.unwrap_err().to_string().contains("odd rule"));
    }

    #[test]
    fn broken_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Tokenizer::open(dir.path()).err().unwrap().what().contains("tokenizer.json"));
        std::fs::write(dir.path().join("tokenizer.json"), "{\"model\":{}}").unwrap();
        assert!(Tokenizer::open(dir.path()).err().unwrap().what().contains("tokenizer.json"));
    }

    #[test]
    fn nested_quantifier_ends_and_loses_no_text() {
        let text = std::fs::read_to_string(Path::new(BASE).join("tokenizer.json")).unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let pattern = &mut json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
        *pattern = "(?:(?:a+)+)+(?=b)$".into();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        let t = Tokenizer::open(dir.path()).unwrap();
        // The regex engine gives up after a million steps; what it did not split is one piece.
        let text = "a".repeat(4000);
        assert_eq!(t.decode(&t.encode(&text).unwrap()).unwrap(), text);
    }
}
