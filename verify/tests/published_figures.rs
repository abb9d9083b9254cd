//! Figures of stand-ins of published models equal those of their publishers.

#![allow(clippy::unwrap_used)]

#[path = "../../tests/support/stand_in.rs"]
mod stand_in;

use stand_in::StandIn;
use verify::inspect::{Inspection, Part};
use verify::serving::{
    CacheFormat, Deployment, Fit, Load, Memory, Verdict, Vram, WeightFormat, Weights, sizes,
};

const FP8: WeightFormat = WeightFormat::Fp8 { block: true };
const INT4: WeightFormat = WeightFormat::Int4 { group: 128 };

fn inspected(model: &StandIn) -> Inspection {
    Inspection::of(&model.view()).unwrap()
}

fn weights(model: &StandIn, format: WeightFormat) -> Weights {
    let found = inspected(model);
    Weights::in_format(format, &model.view().tensors, found.architecture.as_ref().unwrap())
}

fn memory(model: &StandIn) -> Memory {
    Memory::of(inspected(model).dimensions.as_ref().unwrap())
}

fn billions(n: u64) -> f64 {
    (n as f64 / 1e7).round() / 100.0
}

#[test]
fn parameter_counts_are_the_published_ones() {
    // Model cards: 30.5 B in total and 3.3 B activated; 32.8 B; 8.03 B; 1.24 B; 35 B and 3 B activated.
    let p = |model: StandIn| inspected(&model).parameters;
    let moe = p(stand_in::qwen3_30b_a3b());
    assert_eq!((moe.language, moe.active), (30_532_122_624, 3_353_032_704));
    assert_eq!(moe.total, moe.language);
    assert_eq!(p(stand_in::qwen3_32b()).language, 32_762_123_264);
    assert_eq!(p(stand_in::llama_3_1_8b()).language, 8_030_261_248);
    assert_eq!(p(stand_in::llama_3_2_1b()).language, 1_235_814_400);
    let hybrid = p(stand_in::qwen3_6_35b_a3b());
    assert_eq!((billions(hybrid.language), billions(hybrid.active)), (34.66, 3.45));
    assert!(billions(hybrid.total) > 35.5 && billions(hybrid.total) < 36.5);
    assert!((4.0..4.5).contains(&billions(p(stand_in::qwen3_5_4b()).language)));
}

#[test]
fn parts_add_up_to_the_whole() {
    for (name, model) in stand_in::all() {
        let p = inspected(&model).parameters;
        assert_eq!(p.parts.iter().map(|s| s.amount.parameters).sum::<u64>(), p.total, "{name}");
        assert_eq!(p.of(Part::Other).tensors, 0, "{name}");
        let elements: u64 = model.tensors.iter().map(|t| t.elements() as u64).sum();
        assert_eq!(p.total, elements, "{name}");
    }
    let p = inspected(&stand_in::qwen3_6_35b_a3b()).parameters;
    assert_eq!(p.of(Part::RoutedExperts).parameters, 40 * 256 * 3 * 2048 * 512);
    assert_eq!(p.of(Part::Vision).tensors, 333);
}

#[test]
fn keys_and_values_of_a_token_are_the_published_ones() {
    assert_eq!(memory(&stand_in::qwen3_30b_a3b()).kv_per_token, 96 << 10);
    assert_eq!(memory(&stand_in::qwen3_6_35b_a3b()).kv_per_token, 20 << 10);
    assert_eq!(memory(&stand_in::qwen3_32b()).kv_per_token, 256 << 10);
    assert_eq!(memory(&stand_in::llama_3_1_8b()).kv_per_token, 128 << 10);
    assert_eq!(memory(&stand_in::qwen3_30b_a3b()).kv(CacheFormat::Fp8), 48 << 10);
}

#[test]
fn recurrent_state_is_what_the_layers_keep() {
    // 30 layers: 32 heads of 128 x 128 in F32, and three past inputs of 8192 channels in bf16.
    let each = 32 * 128 * 128 * 4 + 3 * 8192 * 2;
    assert_eq!(memory(&stand_in::qwen3_6_35b_a3b()).state_per_sequence, 30 * each);
    assert_eq!(memory(&stand_in::qwen3_30b_a3b()).state_per_sequence, 0);
}

#[test]
fn weights_take_what_published_packs_take() {
    let gib = |b: u64| b as f64 / (1u64 << 30) as f64;
    let gb = |b: u64| b as f64 / 1e9;
    let model = stand_in::qwen3_6_35b_a3b();
    // The publisher's FP8 pack is about 35 GiB, mtp and vision included; the bf16 one about 72 GB.
    assert!((34.5..35.5).contains(&gib(weights(&model, FP8).bytes)), "{}", weights(&model, FP8).bytes);
    assert!((71.0..73.0).contains(&gb(weights(&model, WeightFormat::Bits16).bytes)));
    // Qwen3-30B-A3B: 61.1 GB in bf16, 31.2 GB as FP8, about 17 GB in 4 bit.
    let model = stand_in::qwen3_30b_a3b();
    assert_eq!(weights(&model, WeightFormat::Bits16).bytes, model.view().tensors.total_bytes());
    assert!((31.0..31.4).contains(&gb(weights(&model, FP8).bytes)), "{}", weights(&model, FP8).bytes);
    assert!((16.0..17.0).contains(&gb(weights(&model, INT4).bytes)), "{}", weights(&model, INT4).bytes);
}

fn fit(model: &StandIn, format: WeightFormat, vram: &str, gpus: u64, load: (u64, u64)) -> Fit {
    let found = inspected(model);
    let load = Load { context: load.0, concurrency: load.1 };
    let deployment = Deployment { vram: Vram::parse(vram).unwrap(), gpus, load };
    Fit::of(found.dimensions.as_ref().unwrap(), &weights(model, format), CacheFormat::Bf16, &deployment)
}

#[test]
fn models_fit_where_they_are_known_to_run() {
    let moe = stand_in::qwen3_30b_a3b();
    let hybrid = stand_in::qwen3_6_35b_a3b();
    let verdict = |model, format, vram, gpus, load| fit(model, format, vram, gpus, load).verdict;
    assert!(matches!(verdict(&moe, WeightFormat::Bits16, "24GiB", 1, (8192, 1)), Verdict::No { .. }));
    assert_eq!(verdict(&moe, WeightFormat::Bits16, "H100", 1, (8192, 4)), Verdict::Fits);
    assert_eq!(verdict(&moe, INT4, "RTX 4090 24GB", 1, (8192, 1)), Verdict::Fits);
    assert!(matches!(verdict(&moe, FP8, "RTX 4090 24GB", 1, (8192, 1)), Verdict::No { .. }));
    assert_eq!(verdict(&moe, FP8, "RTX 4090 24GB", 2, (8192, 4)), Verdict::Fits);
    assert_eq!(verdict(&hybrid, FP8, "L40S", 1, (32_768, 1)), Verdict::Fits);
    let Verdict::UpTo { context } = verdict(&moe, INT4, "RTX 4090 24GB", 1, (40_960, 8)) else {
        panic!("more than it can hold")
    };
    assert!((1024..40_960).contains(&context), "{context}");
}

#[test]
fn the_context_that_is_said_to_fit_does_and_the_next_does_not() {
    let model = stand_in::qwen3_30b_a3b();
    let Verdict::UpTo { context } = fit(&model, INT4, "24GiB", 1, (40_960, 4)).verdict else { panic!() };
    assert_eq!(fit(&model, INT4, "24GiB", 1, (context, 4)).verdict, Verdict::Fits);
    assert!(fit(&model, INT4, "24GiB", 1, (context + 16, 4)).verdict != Verdict::Fits);
}

fn allowed(model: &StandIn, format: WeightFormat) -> Vec<u64> {
    let found = inspected(model);
    let list = sizes(found.dimensions.as_ref().unwrap(), format, Some(3));
    assert!(list.iter().any(|s| s.gpus == 3 && s.obstacle.is_some()));
    list.into_iter().filter(|s| s.obstacle.is_none()).map(|s| s.gpus).collect()
}

#[test]
fn shapes_decide_the_tensor_parallel_sizes() {
    let moe = stand_in::qwen3_30b_a3b();
    assert_eq!(allowed(&moe, WeightFormat::Bits16), [1, 2, 4, 8, 16]);
    // Experts are 768 wide: 6 blocks of 128.
    assert_eq!(allowed(&moe, FP8), [1, 2]);
    assert_eq!(allowed(&moe, INT4), [1, 2]);
    // 512 are 4 blocks.
    assert_eq!(allowed(&stand_in::qwen3_6_35b_a3b(), FP8), [1, 2, 4]);
    // 25600 / 8 are 25 blocks, which 16 GPUs would part.
    assert_eq!(allowed(&stand_in::qwen3_32b(), FP8), [1, 2, 4, 8]);
    let dims = inspected(&moe).dimensions.unwrap();
    let reason = sizes(&dims, FP8, None)[2].obstacle.clone().unwrap();
    assert!(
        reason.contains("768") && reason.contains("192") && reason.contains("expert parallelism"),
        "{reason}"
    );
}

#[test]
fn few_heads_are_repeated_and_uneven_ones_refused() {
    let dims = inspected(&stand_in::qwen3_6_35b_a3b()).dimensions.unwrap();
    let on = |gpus| Memory::per_gpu(&dims, gpus).kv_per_token;
    // Two KV heads on four GPUs: each holds one, so four GPUs hold each head twice.
    assert_eq!((on(1), on(2), on(4)), (20 << 10, 10 << 10, 10 << 10));
    let six = sizes(&dims, WeightFormat::Bits16, Some(6));
    assert!(
        six.iter().any(|s| s.gpus == 6 && s.obstacle.as_ref().is_some_and(|o| o.contains("16 query heads")))
    );
}
