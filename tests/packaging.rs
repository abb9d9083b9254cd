//! Files for CI systems are YAML and call `prep` as it can be called.

use serde_json::Value;

use crate::args;
use crate::support::{Dir, command, prep, repository, tiny_fp8};

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&std::fs::read_to_string(repository().join(path)).unwrap()).unwrap()
}

/// Runs a script as the CI system would, with `prep` on the path; exit code, and the folder it ran in.
fn run(script: &str, envs: &[(&str, &str)], dir: &Dir) -> Option<i32> {
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_prep")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let work = dir.join("work");
    std::fs::create_dir_all(&work).unwrap();
    let mut bash = std::process::Command::new("bash");
    bash.args(["-e", "-o", "pipefail", "-c", script]).current_dir(&work).env("PATH", path);
    bash.envs(envs.iter().copied()).env("CI_PROJECT_DIR", &work).stdout(std::process::Stdio::null());
    bash.status().unwrap().code()
}

fn kept(dir: &Dir) -> bool {
    ["OUT/prep-report.json", "OUT/SHA256SUMS", "prep-reports/verify.xml", "prep-reports/verify.html"]
        .iter()
        .all(|f| dir.join("work").join(f).is_file())
}

#[test]
fn the_github_action_runs_a_recipe_and_keeps_what_it_says() {
    let action = yaml(".github/actions/run-recipe/action.yml");
    let steps = action["runs"]["steps"].as_array().unwrap();
    assert_eq!(action["runs"]["using"], "composite");
    let script = steps[1]["run"].as_str().unwrap();
    let recipe = repository().join("recipes/tiny.toml").canonicalize().unwrap();
    let recipe = recipe.to_str().unwrap();
    let dir = Dir::new();
    let envs =
        [("RECIPE", recipe), ("OUT", "OUT"), ("CHANGES", "verify.min_score=60\nquantize.scheme=channel\n")];
    assert_eq!(run(script, &envs, &dir), Some(0));
    assert!(kept(&dir));
    // A failed verification fails the job, and the proof of it is kept all the same.
    let dir = Dir::new();
    let envs = [("RECIPE", recipe), ("OUT", "OUT"), ("CHANGES", "verify.parser=hermes")];
    assert_eq!(run(script, &envs, &dir), Some(1));
    assert!(kept(&dir));
    assert_eq!(steps[2]["if"], "always()");
    assert!(steps[2]["with"]["path"].as_str().unwrap().contains("prep-reports/"));
}

#[test]
fn the_gitlab_template_runs_a_recipe_and_keeps_what_it_says() {
    let job = &yaml("cli/packaging/gitlab.yml")[".prep-recipe"];
    let lines = job["script"].as_array().unwrap().iter().map(|l| l.as_str().unwrap());
    let script = lines.collect::<Vec<_>>().join("\n");
    let recipe = repository().join("recipes/tiny.toml").canonicalize().unwrap();
    let dir = Dir::new();
    assert_eq!(run(&script, &[("RECIPE", recipe.to_str().unwrap()), ("OUT", "OUT")], &dir), Some(0));
    assert!(kept(&dir));
    assert_eq!(job["artifacts"]["reports"]["junit"], "prep-reports/verify.xml");
    assert_eq!(job["artifacts"]["when"], "always");
}

#[test]
fn the_wheel_and_the_image_are_built_from_what_is_there() {
    let root = repository();
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let project: toml::Table = toml::from_str(&read("cli/packaging/pyproject.toml")).unwrap();
    let maturin = &project["tool"]["maturin"];
    assert!(root.join("cli/packaging").join(maturin["manifest-path"].as_str().unwrap()).is_file());
    let cargo: toml::Table = toml::from_str(&read("Cargo.toml")).unwrap();
    let profile = maturin["profile"].as_str().unwrap();
    assert_eq!(cargo["profile"][profile]["inherits"].as_str(), Some("release"));
    let image = read("cli/packaging/Dockerfile");
    assert!(
        image.contains(&format!("--profile {profile} ")) && image.contains(&format!("target/{profile}/prep"))
    );
    let last_user = image.lines().rfind(|l| l.starts_with("USER")).unwrap();
    assert!(last_user != "USER root" && last_user != "USER 0", "{last_user}");
}

#[test]
fn the_binary_runs_where_nothing_is_set() {
    // As in an image for a user without a home.
    let mut inspect = command(args!["inspect", tiny_fp8()]);
    inspect.env_clear();
    assert!(inspect.output().unwrap().status.success());
    prep(["--version"]).succeeds();
}
