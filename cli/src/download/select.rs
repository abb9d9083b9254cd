//! Which files of a repository belong to a model; all others are named with the reason.

use globset::{GlobBuilder, GlobMatcher};
use verify::checkpoint::LeftOut;
use verify::{Error, Result, Shown};

use super::names::{RepoPath, is_ours};

/// What a model folder needs.
const DEFAULT: [&str; 15] = [
    "*.safetensors",
    "*.json",
    "*.jinja",
    "additional_chat_templates/*.jinja",
    "*.model",
    "*.tiktoken",
    "merges.txt",
    "vocab.txt",
    "added_tokens.txt",
    "license*",
    "licence*",
    "notice*",
    "copying*",
    "use_policy*",
    "readme.md",
];

const PICKLES: [&str; 8] = [".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".npy", ".joblib"];
const CODE: [&str; 10] = [".py", ".pyc", ".so", ".sh", ".dll", ".dylib", ".exe", ".ipynb", ".js", ".jar"];
const OTHER_WEIGHTS: [&str; 7] = [".gguf", ".h5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".tflite"];

/// The choice of files.
#[derive(Debug)]
pub struct Selection {
    include: Vec<GlobMatcher>,
    exclude: Vec<GlobMatcher>,
    given: bool,
    keep_code: bool,
}

impl Selection {
    /// From the globs of the command line; none for `include` means the default. Python files are only ever fetched
    /// with `keep_code`.
    ///
    /// # Errors
    /// Exit 2 for a pattern that is no glob.
    pub fn new(include: &[String], exclude: &[String], keep_code: bool) -> Result<Self> {
        let given = !include.is_empty();
        let code = keep_code.then_some("*.py");
        let default: Vec<String> = DEFAULT.into_iter().chain(code).map(String::from).collect();
        let include = match given {
            true => globs("--include", include, Star::CrossesFolders)?,
            false => globs("--include", &default, Star::StaysInFolder)?,
        };
        let exclude = globs("--exclude", exclude, Star::CrossesFolders)?;
        Ok(Selection { include, exclude, given, keep_code })
    }

    /// Splits `files` into those to fetch and those left out, with reasons; `path` is a file's path.
    ///
    /// # Errors
    /// Exit 3 where pickles were asked for, or are all the weights there are; exit 2 where nothing is left.
    pub fn apply<T>(&self, files: Vec<T>, path: impl Fn(&T) -> &RepoPath) -> Result<(Vec<T>, Vec<LeftOut>)> {
        let mut wanted = Vec::new();
        let mut left_out = Vec::new();
        for file in files {
            match self.reason(path(&file))? {
                None => wanted.push(file),
                Some(reason) => left_out
                    .push(LeftOut { name: Shown(path(&file).as_str()).to_string(), reason: reason.into() }),
            }
        }
        self.refuse_pickles_alone(wanted.iter().map(&path), &left_out)?;
        if wanted.is_empty() {
            return Err(Error::usage("no file of the repository is asked for")
                .found(format!("{} files, all left out", left_out.len()))
                .hint("check --include and --exclude: --dry-run lists every file with its reason"));
        }
        Ok((wanted, left_out))
    }

    /// Why a file is left out; an error where something dangerous was asked for by name.
    fn reason(&self, path: &RepoPath) -> Result<Option<&'static str>> {
        let lower = path.as_str().to_ascii_lowercase();
        let ends = |list: &[&str]| list.iter().any(|e| lower.ends_with(e));
        let excluded = self.exclude.iter().any(|g| g.is_match(&lower) || g.is_match(path));
        let included = self.include.iter().any(|g| g.is_match(&lower) || g.is_match(path));
        let asked = self.given && included && !excluded;
        let danger = if ends(&PICKLES) || lower.ends_with(".bin.index.json") {
            Some("pickle: may run code when opened, never fetched")
        } else if ends(&CODE) && !(self.keep_code && lower.ends_with(".py")) {
            Some("code: a server would need trust_remote_code")
        } else {
            None
        };
        if let Some(reason) = danger {
            return match asked && self.include.iter().any(|g| named(g, path)) {
                true => Err(Error::input(format!("{} is refused", Shown(path.as_str())))
                    .found(reason)
                    .expected("safetensors, configs, tokenizer, template, licence")
                    .hint("convert pickles with a trusted tool; Python files are fetched with --keep-code")),
                false => Ok(Some(reason)),
            };
        }
        Ok(if is_ours(path) {
            Some("prep writes its own, after it has checked every file")
        } else if lower.ends_with(".part") {
            Some("unfinished file")
        } else if excluded {
            Some("left out by --exclude")
        } else if included {
            None
        } else if self.given {
            Some("not asked for by --include")
        } else if lower.rsplit('/').next().is_some_and(|n| n.starts_with('.')) {
            Some("hidden file")
        } else if ends(&OTHER_WEIGHTS) {
            Some("weights in another format")
        } else if lower.contains('/') {
            Some("in a subfolder")
        } else {
            Some("no part of a model folder: ask for it by --include")
        })
    }

    fn refuse_pickles_alone<'a>(
        &self,
        wanted: impl IntoIterator<Item = &'a RepoPath>,
        left_out: &[LeftOut],
    ) -> Result<()> {
        let pickle = left_out.iter().find(|l| l.reason.starts_with("pickle"));
        let weights = wanted.into_iter().any(|p| p.as_str().to_ascii_lowercase().ends_with(".safetensors"));
        match pickle {
            Some(p) if !weights && !self.given && self.exclude.is_empty() => {
                Err(Error::input("the repository holds weights only as pickles")
                    .found(p.name.clone())
                    .expected("safetensors files")
                    .hint("pickles can run code and are never fetched: look for a converted copy, often at the revision refs/pr/1"))
            }
            _ => Ok(()),
        }
    }
}

/// A pattern that means a dangerous file, and not just everything.
fn named(glob: &GlobMatcher, path: &RepoPath) -> bool {
    let pattern = glob.glob().glob();
    let extension = path.as_str().rsplit_once('.').map_or("", |(_, e)| e);
    !extension.is_empty() && pattern.to_ascii_lowercase().ends_with(&extension.to_ascii_lowercase())
}

/// Whether `*` matches `/`: in patterns of the user it does, as in those of the hub's own client.
#[derive(Clone, Copy, PartialEq)]
enum Star {
    CrossesFolders,
    StaysInFolder,
}

fn globs(flag: &str, patterns: &[String], star: Star) -> Result<Vec<GlobMatcher>> {
    let parse = |p: &String| {
        GlobBuilder::new(p)
            .literal_separator(star == Star::StaysInFolder)
            .build()
            .map(|g| g.compile_matcher())
            .map_err(|e| {
                Error::usage(format!("`{flag} {}` is no pattern", Shown(p)))
                    .found(e.kind().to_string())
                    .expected("a glob, such as '*.json'")
            })
    };
    patterns.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(include: &[&str], exclude: &[&str], files: &[&str]) -> Result<(Vec<String>, Vec<LeftOut>)> {
        let own = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let files: Vec<_> = files.iter().map(|f| RepoPath::parse(f).unwrap()).collect();
        let (wanted, left) = Selection::new(&own(include), &own(exclude), false)?.apply(files, |f| f)?;
        Ok((wanted.iter().map(ToString::to_string).collect(), left))
    }

    const REPO: [&str; 12] = [
        ".gitattributes",
        "LICENSE",
        "README.md",
        "config.json",
        "model.safetensors",
        "pytorch_model.bin",
        "modeling_x.py",
        "tokenizer.model",
        "merges.txt",
        "model.gguf",
        "figures/a.png",
        "SHA256SUMS",
    ];

    #[test]
    fn default_is_what_a_model_folder_needs_and_the_rest_is_named() {
        let (wanted, left) = apply(&[], &[], &REPO).unwrap();
        assert_eq!(
            wanted,
            ["LICENSE", "README.md", "config.json", "model.safetensors", "tokenizer.model", "merges.txt"]
        );
        let reason = |n: &str| left.iter().find(|l| l.name == n).unwrap().reason.to_string();
        assert!(reason("pytorch_model.bin").starts_with("pickle"));
        assert!(reason("modeling_x.py").starts_with("code"));
        assert_eq!(wanted.len() + left.len(), REPO.len());
    }

    #[test]
    fn include_replaces_the_default_and_exclude_wins() {
        let (wanted, _) = apply(&["*.json", "figures/*"], &["*.png"], &REPO).unwrap();
        assert_eq!(wanted, ["config.json"]);
        let (wanted, left) = apply(&["*"], &[], &REPO).unwrap();
        assert!(
            wanted.contains(&".gitattributes".to_string())
                && !wanted.contains(&"pytorch_model.bin".to_string())
        );
        assert!(left.iter().any(|l| l.name == "modeling_x.py"));
    }

    #[test]
    fn pickles_and_code_asked_for_are_refused() {
        for pattern in ["*.bin", "*.py", "pytorch_model.bin"] {
            assert_eq!(apply(&[pattern], &[], &REPO).unwrap_err().class(), verify::Class::Input, "{pattern}");
        }
        assert!(
            apply(&[], &[], &["config.json", "pytorch_model.bin"]).unwrap_err().what().contains("pickles")
        );
    }

    #[test]
    fn python_files_come_where_they_are_asked_for_and_other_code_never() {
        let files = ["config.json", "modeling_x.py", "lib/a.py", "run.sh", "x.so", "pytorch_model.bin"];
        let paths = || files.iter().map(|f| RepoPath::parse(f).unwrap()).collect::<Vec<_>>();
        let wanted = |include: &[&str]| {
            let include: Vec<_> = include.iter().map(ToString::to_string).collect();
            let (wanted, _) = Selection::new(&include, &[], true)?.apply(paths(), |f| f)?;
            Ok::<_, Error>(wanted.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        // The pickle alone is refused where nothing was asked for by name.
        assert!(wanted(&[]).is_err());
        assert_eq!(wanted(&["*.json", "*.py"]).unwrap(), ["config.json", "modeling_x.py", "lib/a.py"]);
        assert_eq!(wanted(&["*.json"]).unwrap(), ["config.json"]);
        assert!(wanted(&["*.sh"]).is_err() && wanted(&["*.so"]).is_err());
    }

    #[test]
    fn nothing_left_and_bad_patterns_are_wrong_usage() {
        for (include, exclude) in [("*.nothing", "x"), ("*", "*"), ("[", "x")] {
            assert_eq!(apply(&[include], &[exclude], &REPO).unwrap_err().class(), verify::Class::Usage);
        }
    }
}
