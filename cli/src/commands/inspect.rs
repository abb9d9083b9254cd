//! `prep inspect`: what a model is and what it needs.

use serde_json::json;
use verify::Result;
use verify::inspect::Inspection;
use verify::serving::{Load, Question, Requirements, Row, Verdict};
use verify::template::Finding;

use super::model::Model;
use crate::args::{Global, Inspect};
use crate::console::{count, size};
use crate::output::{Output, table};

pub fn run(args: &Inspect, global: &Global, output: &Output) -> Result<u8> {
    let model = Model::look(&args.model, global, output)?;
    let found = model.inspect()?;
    let own = found.dimensions.as_ref().and_then(|d| d.longest_context());
    let question = Question {
        vram: args.hardware.vram,
        gpus: args.hardware.gpus,
        load: Load::asked(args.context, args.concurrency, own),
    };
    let needs = Requirements::of(&found, &model.view.tensors, &question);
    let name = model.place.shown();
    print_identity(&name, &found, output);
    print_parts(&found, output);
    print_text(&found, output);
    if let Some(needs) = &needs {
        print_memory(needs, &question, &defaults(args, own), output);
    }
    print_findings(&found.findings, output);
    let mut json = json!(found);
    json["model"] = json!(name);
    json["hub"] = model.place.hub();
    json["needs"] = json!(needs);
    output.result(0, json);
    Ok(0)
}

/// Which parts of the load nobody asked for.
fn defaults(args: &Inspect, own: Option<u64>) -> String {
    let own = own.map_or(String::new(), |own| format!(", up to {own},"));
    match (args.context, args.concurrency) {
        (Some(_), Some(_)) => String::new(),
        (None, Some(_)) => format!("; else --context{own}"),
        (Some(_), None) => "; else --concurrency".into(),
        (None, None) => format!("; else --context{own} and --concurrency"),
    }
}

/// `label      text`, aligned.
fn line(output: &Output, label: &str, text: impl AsRef<str>) {
    output.text(&format!("{label:<11} {}", text.as_ref()));
}

fn print_identity(model: &str, found: &Inspection, output: &Output) {
    let class = found.class.as_ref().map(|c| format!(" ({c})")).unwrap_or_default();
    line(output, "model", format!("{model}: {}{class}", found.model_type));
    let p = &found.parameters;
    let active = match p.active == p.language {
        true => String::new(),
        false => format!(", {} active", count(p.active)),
    };
    let whole = match p.total == p.language {
        true => String::new(),
        false => format!(" ({} with mtp and vision)", count(p.total)),
    };
    line(output, "parameters", format!("{}{active}{whole}", count(p.language)));
    let s = &found.storage;
    let types: Vec<_> = s.dtypes.iter().take(4).map(|d| format!("{} {}", size(d.bytes), d.dtype)).collect();
    let files = format!("{} tensors in {} file(s)", s.tensors, s.shards);
    line(output, "stored", format!("{}: {}; {files}", size(s.bytes), types.join(", ")));
    line(
        output,
        "format",
        s.quantization.as_ref().map_or("not quantized".into(), |q| {
            let cache = if q.kv_cache_scales { "; scales for the cache" } else { "" };
            format!("{}; {} modules left in 16 bit{cache}", q.description, q.skipped)
        }),
    );
    let Some(d) = &found.dimensions else { return };
    let linear = match d.linear_layers {
        0 => String::new(),
        n => format!(" with attention, {n} with a recurrent state"),
    };
    line(
        output,
        "layers",
        format!(
            "{}{linear}; {} query and {} KV heads of {}",
            d.attention_layers, d.heads, d.kv_heads, d.head_dim
        ),
    );
    if let Some(e) = d.experts {
        let shared = if e.shared > 0 { format!(", one shared {} wide", e.shared) } else { String::new() };
        let sum = if e.renormalised { "weights renormalised" } else { "weights as the softmax gives them" };
        line(
            output,
            "experts",
            format!("{} of {} a token, {} wide{shared}; {sum}", e.per_token, e.count, e.intermediate),
        );
    }
    let r = &d.rope;
    let stretched = r.stretched.map(|(n, f)| format!(", {f} x {n}")).unwrap_or_default();
    let length = d.context.map_or("not told".into(), |c| format!("{c} tokens"));
    line(
        output,
        "context",
        format!("{length}; rope {} theta {} over {} of {}{stretched}", r.kind, r.theta, r.dims, d.head_dim),
    );
}

fn print_parts(found: &Inspection, output: &Output) {
    let mut rows = vec![["part", "parameters", "stored", "tensors"].map(String::from).to_vec()];
    for s in &found.parameters.parts {
        let a = s.amount;
        rows.push(vec![s.part.name().into(), count(a.parameters), size(a.bytes), a.tensors.to_string()]);
    }
    output.text(&format!("\n{}\n", table(&rows)));
}

fn print_text(found: &Inspection, output: &Output) {
    match &found.template {
        Some(t) => {
            let others = t.places.iter().filter(|p| **p != t.source).cloned().collect::<Vec<_>>();
            let also = match others.is_empty() {
                true => String::new(),
                false => format!(" (also {})", others.join(", ")),
            };
            line(output, "template", format!("{}{also}", t.source));
            line(output, "", &t.teaches);
            line(output, "thinking", t.thinking.sentence());
        }
        None => line(output, "template", "none"),
    }
    let stops: Vec<_> = found
        .tokens
        .stop
        .iter()
        .map(|s| match &s.text {
            Some(text) => format!("{} {text}", s.id),
            None => s.id.to_string(),
        })
        .collect();
    line(output, "stops at", if stops.is_empty() { "nothing".into() } else { stops.join(", ") });
    line(
        output,
        "licence",
        found.licence.as_ref().map_or("not told".into(), |l| format!("{} ({})", l.name, l.file)),
    );
    let p = &found.parsers;
    let flags = |tool: Option<&str>, reasoning: Option<&str>| {
        let tool = tool.map_or("no tool-call parser".into(), |n| format!("--tool-call-parser {n}"));
        let reasoning = reasoning.map(|n| format!(" --reasoning-parser {n}")).unwrap_or_default();
        format!("{tool}{reasoning}")
    };
    line(output, "vLLM", flags(p.vllm, p.vllm_reasoning));
    line(output, "SGLang", flags(p.sglang, p.sglang_reasoning));
    line(output, "", &p.reason);
}

fn print_memory(needs: &Requirements, question: &Question, defaults: &str, output: &Output) {
    let m = &needs.memory;
    let state = match m.state_per_sequence {
        0 => String::new(),
        n => format!(", state {} a conversation", size(n)),
    };
    let gpus = if needs.gpus > 1 { format!(" on each of {} GPUs", needs.gpus) } else { String::new() };
    output.text(&format!(
        "\nmemory{gpus} for {} conversations of {} tokens (cache {} a token in bf16{state}{defaults}):",
        needs.load.concurrency,
        needs.load.context,
        size(m.kv_per_token)
    ));
    let answer = if question.vram.is_some() { "verdict" } else { "smallest card" };
    let head = ["weights", "cache", "weights", "cache", "working", "together", answer];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(needs.rows.iter().map(|row| cells(row, needs.gpus, question.vram.is_some())));
    output.text(&table(&rows));
    if let Some(first) = needs.rows.first().filter(|_| question.vram.is_some()) {
        output.text(&format!(
            "  usable: {} of each GPU (0.92, as vLLM takes it)",
            size(first.fit.usable_bytes)
        ));
    }
    if let Some(card) = needs.card {
        let (major, minor) = card.capability;
        let fp8 = if card.has_fp8() { "has FP8 tensor cores" } else { "has no FP8 tensor cores" };
        output.text(&format!("  {}: compute capability {major}.{minor}, {fp8}", card.name));
    }
    output.text("\ntensor-parallel sizes that the shapes allow:");
    for p in &needs.parallel {
        let fit: Vec<_> =
            p.sizes.iter().filter(|s| s.obstacle.is_none()).map(|s| s.gpus.to_string()).collect();
        let not = p.sizes.iter().find_map(|s| Some(format!("; not {}: {}", s.gpus, s.obstacle.as_ref()?)));
        output.text(&format!("  {:<8} {}{}", p.format.name(), fit.join(", "), not.unwrap_or_default()));
    }
}

fn cells(row: &Row, gpus: u64, asked: bool) -> Vec<String> {
    let fit = &row.fit;
    let found = if row.as_found { " (as found)" } else { "" };
    let verdict = match (asked, fit.verdict, row.smallest_card) {
        (false, _, Some(card)) if gpus > 1 => format!("{gpus} x {card}"),
        (false, _, Some(card)) => card.to_string(),
        (false, _, None) => "no single card of the list".into(),
        (true, Verdict::Fits, _) => "fits".into(),
        (true, Verdict::UpTo { context }, _) => format!("fits up to {context} tokens"),
        (true, Verdict::No { lacks }, _) => format!("does not fit: {} too much", size(lacks)),
    };
    vec![
        format!("{}{found}", fit.weights.name()),
        fit.cache.name().into(),
        size(fit.weight_bytes),
        size(fit.cache_bytes),
        size(fit.rest.bytes()),
        size(fit.total_bytes),
        verdict,
    ]
}

/// Findings for people, each with what to do.
pub fn print_findings(findings: &[Finding], output: &Output) {
    if findings.is_empty() {
        output.text("\nnothing odd was found");
        return;
    }
    output.text("");
    for f in findings {
        output.text(&format!("{}: {}\n  hint: {}", f.level.name(), f.what, f.advice));
    }
}
