//! Help texts: every command has one line and two examples that parse.

use crate::args;
use crate::support::{prep, repository};

pub const COMMANDS: [&str; 21] = [
    "run",
    "download",
    "merge-lora",
    "quantize",
    "assemble",
    "template show",
    "template render",
    "template check",
    "template embed",
    "checksum",
    "verify",
    "parse",
    "parsers",
    "generate",
    "inspect",
    "serve-command",
    "diff",
    "doctor",
    "bench",
    "completions",
    "man",
];

#[test]
fn every_command_has_two_examples_whose_options_exist() {
    for command in COMMANDS {
        let mut words: Vec<&str> = command.split(' ').collect();
        words.push("--help");
        let help = prep(&words).succeeds().stdout;
        let examples: Vec<&str> =
            help.lines().map(str::trim).filter(|l| l.starts_with(&format!("prep {command}"))).collect();
        assert!(examples.len() >= 2, "{command}:\n{help}");
        let options = help.split("Examples:").next().unwrap_or_default();
        for example in examples {
            assert!(!example.ends_with('\\'), "{example} is cut");
            // What stands after `--` is another program's.
            let own = example.split(" -- ").next().unwrap_or_default();
            for flag in own.split_whitespace().filter(|w| w.starts_with("--")) {
                let known = |l: &str| l.split([' ', ',']).any(|w| w == flag);
                assert!(options.lines().any(known), "{flag} of {example}");
            }
        }
    }
}

#[test]
fn options_are_offered_where_they_do_something() {
    let offering = |flag: &str| -> Vec<&str> {
        let offers = |command: &&str| {
            let help = prep(command.split(' ').chain(["--help"])).succeeds().stdout;
            help.lines().any(|l| l.trim().split([' ', ',']).any(|w| w == flag))
        };
        COMMANDS.into_iter().filter(offers).collect()
    };
    assert_eq!(offering("--force"), ["run", "download", "merge-lora", "quantize", "checksum"]);
    assert_eq!(offering("--hash-inputs"), ["run", "merge-lora", "quantize", "assemble"]);
    assert_eq!(offering("--keep-code"), ["run", "download", "merge-lora", "quantize"]);
    assert_eq!(
        offering("--private-paths"),
        ["run", "download", "merge-lora", "quantize", "assemble", "verify"]
    );
    assert_eq!(offering("--no-lock"), ["run", "download", "merge-lora", "quantize", "assemble"]);
    assert_eq!(offering("--lock-wait"), ["run", "download", "merge-lora", "quantize", "assemble"]);
    assert_eq!(offering("--json").len(), COMMANDS.len());
    prep(["inspect", "x", "--force"]).exits(2);
}

#[test]
fn wrong_usage_exits_2_and_json_says_so() {
    prep(["frobnicate"]).exits(2);
    prep(["checksum"]).exits(2).says("MODEL");
    let json = prep(["checksum", "--json", "--wrong"]).exits(2).json();
    assert_eq!(json["code"], 2);
    prep(["--version"]).succeeds().says("prep 0.");
}

#[test]
fn recipe_faults_name_the_line() {
    let dir = crate::support::Dir::new();
    let path = dir.join("r.toml");
    std::fs::write(&path, "base = 'x'\nquantise = 1\n").unwrap();
    prep(args!["run", path, "--out", dir.join("o")]).exits(2).says("line 2");
}

#[test]
fn readme_names_every_command() {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    for command in COMMANDS {
        let first = command.split(' ').next().unwrap();
        assert!(readme.contains(&format!("prep {first}")), "{first}");
    }
}
