//! Words of a command as each kind of file wants them.

/// A word for a POSIX shell.
pub fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// A word of `ExecStart=`: `%` and `$` mean something to systemd.
pub fn systemd(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%$".contains(c);
    match !escaped.is_empty() && escaped.chars().all(plain) {
        true => escaped,
        false => format!("\"{escaped}\""),
    }
}

/// A text in YAML: a JSON string is one too.
pub fn yaml(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A word of a container's command in YAML: compose replaces `$NAME`, Kubernetes `$(NAME)`, and both take `$$` for one
/// `$`.
pub fn container(word: &str) -> String {
    yaml(&word.replace('$', "$$"))
}

/// A name of a Kubernetes object: lower case letters, digits and dashes, at most 50.
pub fn object_name(text: &str) -> String {
    let dashed: String =
        text.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let short: String = dashed.trim_matches('-').chars().take(50).collect();
    match short.trim_matches('-') {
        "" => "model".into(),
        // Names of services must begin with a letter.
        name if name.starts_with(|c: char| c.is_ascii_digit()) => format!("m-{name}"),
        name => name.to_string(),
    }
}

/// A comment of one line, whatever the text.
pub fn comment(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_file_gets_its_own_quotes() {
        assert_eq!(shell("/m/a b's"), "'/m/a b'\\''s'");
        assert_eq!(shell("--x"), "--x");
        assert_eq!(systemd("50% of $A \"b\""), "\"50%% of $$A \\\"b\\\"\"");
        assert_eq!(container("$HOME $(id)"), r#""$$HOME $$(id)""#);
        assert_eq!(yaml("a: \"b\"\n"), r#""a: \"b\"\n""#);
        assert_eq!(object_name("Qwen3.6_35B/"), "qwen3-6-35b");
        assert_eq!((object_name("3B").as_str(), object_name("..").as_str()), ("m-3b", "model"));
        assert_eq!(comment("a\nb"), "a b");
    }
}
