//! The whole job on the hybrid model (DeltaNet, gated attention, fused experts).

use crate::args;
use crate::support::{Dir, fixture, prep, repository, tiny_hybrid};

#[test]
fn hybrid_model_keeps_the_score_of_the_fine_tune() {
    let dir = Dir::new();
    let out = dir.join("out");
    let recipe = repository().join("recipes/tiny-qwen3.6.toml");
    prep(args!["run", recipe, "--out", out]).succeeds();
    let hermes = prep(args!["verify", out, "--parser", "hermes", "--json"]).exits(1).json();
    assert!(hermes["score"].as_u64().unwrap() <= 3, "{}", hermes["score"]);
    prep(args!["template", "embed", out, "--from", fixture("models/qwen3_5-moe/base")]).succeeds();
    prep(args!["verify", out, "--parser", "qwen3_coder"]).exits(1).says("this template teaches no tools");
}

#[test]
fn merged_hybrid_model_scores_in_bf16_and_in_every_fp8_scheme() {
    let (dir, merged) = (Dir::new(), tiny_hybrid());
    let score = |model: &std::path::Path| {
        let result = prep(args!["verify", model, "--parser", "qwen3_coder", "--json"]).succeeds().json();
        result["score"].as_u64().unwrap()
    };
    let full = score(merged);
    assert!(full >= 66, "{full}");
    for scheme in ["channel", "tensor"] {
        let out = dir.join(scheme);
        prep(args!["quantize", merged, "--out", out, "--fp8", "--scheme", scheme]).succeeds();
        assert!(score(&out) + 2 >= full, "{scheme}");
    }
}
