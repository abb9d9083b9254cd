//! Environment variables that change what happens. Secrets are told as set, never printed.

use std::path::Path;

use verify::Shown;
use verify::template::Level;

use super::Section;

/// Variables whose value is shown.
const SHOWN: [&str; 15] = [
    "HF_HOME",
    "HF_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_HUB_OFFLINE",
    "MODELSCOPE_CACHE",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_HOME",
    "LD_LIBRARY_PATH",
    "RAYON_NUM_THREADS",
    "OMP_NUM_THREADS",
    "TMPDIR",
    "NO_COLOR",
    "HF_HUB_ENABLE_HF_TRANSFER",
    "NO_PROXY",
    "SSL_CERT_FILE",
];

/// Variables that may hold a secret: only that they are set is told.
const SECRET: [&str; 8] = [
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "MODELSCOPE_API_TOKEN",
    "OPENAI_API_KEY",
    "VLLM_API_KEY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
];

pub fn look(var: &dyn Fn(&str) -> Option<String>) -> Section {
    let mut s = Section::new("environment");
    for name in SHOWN {
        if let Some(value) = var(name) {
            s.fact(name, without_password(&Shown(&value).to_string()));
        }
    }
    for name in SECRET {
        if var(name).is_some_and(|v| !v.is_empty()) {
            s.fact(name, "set (not shown)");
        }
    }
    problems(&mut s, var);
    s
}

fn problems(s: &mut Section, var: &dyn Fn(&str) -> Option<String>) {
    let on = |name: &str| {
        var(name).is_some_and(|v| matches!(v.to_lowercase().as_str(), "1" | "true" | "yes" | "on"))
    };
    if matches!(var("CUDA_VISIBLE_DEVICES").as_deref().map(str::trim), Some("" | "-1")) {
        let what = "CUDA_VISIBLE_DEVICES hides every GPU";
        s.finding(Level::Warning, what, "unset it, or name the GPUs: CUDA_VISIBLE_DEVICES=0");
    }
    if let Some(url) = var("HF_ENDPOINT").filter(|u| !u.starts_with("https://") && !u.starts_with("http://"))
    {
        let what = format!("HF_ENDPOINT is no URL: {}", without_password(&Shown(&url).to_string()));
        s.finding(Level::Error, what, "write it with https://, or unset it");
    }
    if on("HF_HUB_OFFLINE") {
        let what = "HF_HUB_OFFLINE is set: nothing is downloaded";
        s.finding(Level::Note, what, "unset it to download");
    }
    for name in ["HF_HOME", "HF_HUB_CACHE", "TMPDIR"] {
        let Some(path) = var(name).filter(|p| !p.is_empty() && !Path::new(p).is_dir()) else { continue };
        let what = format!("{name} is no folder: {}", Shown(&path));
        s.finding(Level::Warning, what, "make the folder, or unset the variable");
    }
    if let Some(token) = var("HF_TOKEN").filter(|t| !t.is_empty() && !t.starts_with("hf_")) {
        // Its length tells a cut one from another kind; the text itself is nobody's business.
        let what =
            format!("HF_TOKEN does not look like a token of the hub ({} characters)", token.chars().count());
        s.finding(Level::Warning, what, "tokens of huggingface.co begin with hf_: copy it again");
    }
}

/// A URL without what stands between `//` and `@`.
fn without_password(text: &str) -> String {
    match text.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?))) {
        Some((scheme, (_, host))) => format!("{scheme}://...@{host}"),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &'static [(&'static str, &'static str)]) -> Section {
        look(&|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn secrets_are_never_shown() {
        let s = with(&[
            ("HF_TOKEN", "secret-1"),
            ("HTTPS_PROXY", "http://me:secret-2@proxy:3128"),
            ("HF_ENDPOINT", "https://me:secret-3@mirror"),
            ("OPENAI_API_KEY", "secret-4"),
        ]);
        let text = serde_json::to_string(&s).unwrap();
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("HF_TOKEN") && text.contains("https://...@mirror"), "{text}");
    }

    #[test]
    fn each_wrong_value_has_its_fix() {
        let s =
            with(&[("CUDA_VISIBLE_DEVICES", ""), ("HF_ENDPOINT", "hf-mirror.com"), ("HF_HOME", "/no/such")]);
        let levels: Vec<_> = s.findings.iter().map(|f| f.level).collect();
        assert_eq!(levels, [Level::Warning, Level::Error, Level::Warning], "{s:?}");
        assert!(with(&[("CUDA_VISIBLE_DEVICES", "0"), ("HF_TOKEN", "hf_x")]).findings.is_empty());
    }
}
