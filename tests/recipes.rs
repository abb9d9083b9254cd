//! Recipes of real models, planned on stand-ins of their checkpoints: names, shapes and types, no data.

use crate::args;
use crate::schemas::valid;
use crate::stand_in;
use crate::support::{Dir, prep, repository};

#[test]
fn every_recipe_of_a_real_model_can_be_planned() {
    let dir = Dir::new();
    let recipes = dir.join("recipes");
    std::fs::create_dir(&recipes).unwrap();
    let stand_ins = stand_in::all();
    let mut planned = 0;
    let entries = std::fs::read_dir(repository().join("recipes")).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in names.iter().filter(|n| n.ends_with(".toml") && !n.starts_with("tiny")) {
        let text = std::fs::read_to_string(repository().join("recipes").join(name)).unwrap();
        let base = text.lines().find_map(|l| l.strip_prefix("base = \"../models/")).unwrap();
        let base = base.trim_end_matches('"');
        let (_, model) =
            stand_ins.iter().find(|(n, _)| *n == base).unwrap_or_else(|| panic!("{name}: {base}"));
        let recipe = recipes.join(name);
        std::fs::write(&recipe, &text).unwrap();
        if !dir.join("models").join(base).exists() {
            model.write(&dir.join("models").join(base));
        }
        let adapter = dir.join("adapters/lora");
        let _ = std::fs::remove_dir_all(&adapter);
        model.write_adapter(&adapter);
        let out = dir.join("out");
        let json = prep(args!["run", recipe, "--dry-run", "--json", "--out", out]).succeeds().json();
        valid("plan", &json);
        let stages: Vec<_> =
            json["stages"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
        assert_eq!(stages.first(), Some(&"merge-lora"), "{name}: {stages:?}");
        assert!(stages.contains(&"quantize"), "{name}: {stages:?}");
        assert!(!out.exists());
        // The parsers of the recipe are those that the folder itself asks for.
        let found = prep(args!["inspect", dir.join("models").join(base), "--json"]).succeeds().json();
        let recipe_says = |key: &str| {
            let line = text_of(&recipe)
                .lines()
                .find_map(|l| l.strip_prefix(key)?.strip_prefix(" = \"").map(str::to_string));
            line.map(|l| l.trim_end_matches('"').to_string())
        };
        assert_eq!(recipe_says("parser").as_deref(), found["parsers"]["vllm"].as_str(), "{name}");
        let reasoning = found["parsers"]["vllm_reasoning"].as_str();
        assert_eq!(recipe_says("reasoning_parser").as_deref(), reasoning, "{name}");
        planned += 1;
    }
    assert!(planned >= 6, "{names:?}");
}

fn text_of(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
