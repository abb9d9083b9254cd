//! The part of the page about the baseline: points, predictions, and what the routers choose.

use std::fmt::Write;

use crate::suite::compare::{Change, Divergence, LayerRouting, Predictions, ScoreChange};
use crate::suite::html::words_with_code;
use crate::suite::report::escape;

/// The sections of a model beside its baseline.
pub fn sections(change: &Change) -> String {
    let mut out = format!("<section>\n<h2>Beside the baseline {}</h2>\n", escape(&change.baseline));
    out.push_str(&score(&change.score));
    if let Some(why) = &change.not_compared {
        let _ = writeln!(out, "<p class=\"quiet\">Predictions were not compared: {}.</p>", escape(why));
    }
    out.push_str("</section>\n");
    if let Some(predictions) = &change.predictions {
        out.push_str(&divergences(predictions));
        if !predictions.routers.is_empty() {
            out.push_str(&agreement(&predictions.routers));
            out.push_str(&load(&predictions.routers));
        }
    }
    out
}

fn score(s: &ScoreChange) -> String {
    let row = |name: &str, before: u32, now: u32, max: u32| {
        let difference = i64::from(now) - i64::from(before);
        let class = match difference {
            0 => "",
            d if d < 0 => " class=\"lost\"",
            _ => " class=\"won\"",
        };
        let difference = if difference == 0 { "equal".into() } else { format!("{difference:+}") };
        format!(
            "<tr><th scope=\"row\">{}</th><td>{before} / {max}</td><td>{now} / {max}</td><td{class}>{difference}</td></tr>\n",
            escape(name)
        )
    };
    let rows: String = s.classes.iter().map(|c| row(&c.class, c.baseline, c.model, c.max)).collect();
    let mut out = format!(
        "<div class=\"scroll\"><table class=\"plain\">\n<thead><tr><th>class</th><th>baseline</th><th>this model</th><th>change</th></tr></thead>\n\
         <tbody>\n{rows}</tbody>\n<tfoot>\n{}</tfoot>\n</table></div>\n\
         <p class=\"quiet\">{} of {} answers are the same text.</p>\n",
        row("all", s.baseline, s.model, s.max),
        s.same_text,
        s.answers
    );
    if s.cases.is_empty() {
        out.push_str("<p class=\"quiet\">No case gained or lost a point.</p>\n");
        return out;
    }
    out.push_str(
        "<h3>Cases that gained or lost points</h3>\n<div class=\"scroll\"><table class=\"plain words\">\n\
         <thead><tr><th>case</th><th>baseline</th><th>this model</th><th>what is wrong</th></tr></thead>\n<tbody>\n",
    );
    for c in &s.cases {
        let class = if c.model < c.baseline { "lost" } else { "won" };
        let words = match (&c.fault, &c.baseline_fault) {
            (Some(now), _) => now.clone(),
            (None, Some(before)) => format!("before: {before}"),
            (None, None) => String::new(),
        };
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"{class}\">{}</td><td>{}</td></tr>",
            escape(&c.id),
            c.baseline,
            c.model,
            words_with_code(&words)
        );
    }
    out + "</tbody>\n</table></div>\n"
}

fn divergences(p: &Predictions) -> String {
    let row = |name: &str, d: &Divergence| {
        let cells = [d.mean_kl, d.p95_kl, d.max_kl].map(|x| format!("<td>{}</td>", nats(x))).concat();
        format!(
            "<tr><th scope=\"row\">{name}</th><td>{}</td><td>{}</td>{cells}</tr>\n",
            d.positions,
            percent(d.top1_agreement)
        )
    };
    let mut rows = String::new();
    rows.extend(p.prompts.map(|d| row("within the suite's prompts", &d)));
    rows.extend(p.answers.map(|d| row("at the baseline's answers", &d)));
    rows.extend(p.text.map(|t| row("over the text", &t.divergence)));
    let mut out = format!(
        "<section>\n<h2>Predictions of the next token</h2>\n<div class=\"scroll\"><table class=\"plain\">\n\
         <thead><tr><th>where</th><th>positions</th><th>same likeliest token</th><th>mean KL</th><th>p95 KL</th><th>largest KL</th></tr></thead>\n\
         <tbody>\n{rows}</tbody>\n</table></div>\n\
         <p class=\"quiet\">Both models read the same tokens. KL: divergence from the baseline's distribution, in nats; 0 is equal.</p>\n"
    );
    if let Some((t, perplexity)) = p.text.and_then(|t| Some((t, t.perplexity?))) {
        let _ = writeln!(
            out,
            "<p>Perplexity of the text: <strong>{:.4}</strong> for the baseline, <strong>{:.4}</strong> for this model \
             <span class=\"quiet\">({} tokens in windows of {}).</span></p>",
            perplexity.baseline, perplexity.model, t.tokens, t.window
        );
    }
    out + "</section>\n"
}

/// One bar for each layer: the share of tokens that both route alike.
fn agreement(routers: &[LayerRouting]) -> String {
    let tokens = routers.first().map_or(0, |r| r.tokens);
    let mut out = format!(
        "<section>\n<h2>Router agreement</h2>\n<p class=\"quiet\">Share of {tokens} tokens for which both models choose the \
         same set of experts.</p>\n<table class=\"layers\">\n<tbody>\n"
    );
    for r in routers {
        let class = if r.agreement < 0.9 { "bar low" } else { "bar" };
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">layer {}</th><td>{}</td><td><span class=\"{class}\"><i style=\"width:{:.2}%\"></i></span></td></tr>",
            r.layer,
            percent(r.agreement),
            r.agreement * 100.0
        );
    }
    out + "</tbody>\n</table>\n</section>\n"
}

/// A row of cells for each layer, an expert each; the stronger, the busier. Experts never chosen are crossed out.
fn load(routers: &[LayerRouting]) -> String {
    let experts = routers.iter().map(|r| r.experts).max().unwrap_or(1);
    // Few experts leave room for their numbers.
    let told = experts <= 16;
    let (left, height) = (64.0, if told { 28.0 } else { 16.0 });
    let width = (900.0 - left) / experts as f64;
    let high = routers.len() as f64 * height + 20.0;
    let mut out = format!(
        "<section>\n<h2>Expert load</h2>\n<div class=\"scroll\"><svg class=\"load\" viewBox=\"0 0 900 {high}\" role=\"img\" aria-label=\"load of each expert in each layer\">\n"
    );
    for (at, r) in routers.iter().enumerate() {
        let y = at as f64 * height;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{:.1}\">layer {}</text>",
            left - 8.0,
            y + height / 2.0 + 3.0,
            r.layer
        );
        for e in 0..r.experts {
            let area = Cell { x: left + e as f64 * width, y, width, height };
            out.push_str(&area.draw(r, e, told));
        }
    }
    let (right, bottom) = (left + experts as f64 * width - 1.0, high - 5.0);
    let _ = writeln!(
        out,
        "<text class=\"from\" x=\"{left}\" y=\"{bottom:.1}\">expert 0</text><text x=\"{right:.1}\" y=\"{bottom:.1}\">expert {}</text>\n</svg></div>",
        experts - 1
    );
    let _ = writeln!(
        out,
        "<p class=\"quiet\">Share of each layer's choices. Full strength is three times an even share or more; a crossed cell \
         is an expert that no token reached.</p>\n{}</section>",
        unused(routers)
    );
    out
}

/// Where a cell of the heat map lies, in units of the drawing.
struct Cell {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

impl Cell {
    fn draw(&self, r: &LayerRouting, expert: usize, told: bool) -> String {
        let Cell { x, y, width, height } = self;
        let share = |load: &[u64]| load[expert] as f64 / load.iter().sum::<u64>().max(1) as f64;
        let now = share(&r.load);
        let strength = 0.06 + 0.94 * (now * r.experts as f64 / 3.0).min(1.0);
        let mut out = format!(
            "<rect class=\"cell\" x=\"{x:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{:.1}\" fill-opacity=\"{strength:.3}\">\
             <title>layer {}, expert {expert}: {} of the load, {} for the baseline</title></rect>\n",
            (width - 1.5).max(width * 0.8),
            height - 1.5,
            r.layer,
            percent(now),
            percent(share(&r.baseline_load))
        );
        if r.load[expert] == 0 {
            let _ = writeln!(
                out,
                "<path class=\"unused\" d=\"M{x:.2} {:.1}L{:.2} {y:.1}\"/>",
                y + height - 1.5,
                x + (width - 1.5).max(width * 0.8)
            );
        } else if told {
            let class = if strength > 0.75 { "share strong" } else { "share" };
            let (x, y) = (x + width / 2.0 - 0.75, y + height / 2.0 + 3.0);
            let _ = writeln!(
                out,
                "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{:.1} %</text>",
                now * 100.0
            );
        }
        out
    }
}

fn unused(routers: &[LayerRouting]) -> String {
    let list = |experts: &[usize]| experts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut rows = String::new();
    for r in routers.iter().filter(|r| r.unused != r.baseline_unused || !r.unused.is_empty()) {
        let words = match (r.unused.as_slice(), r.baseline_unused.as_slice()) {
            (now, before) if now == before => format!("{}, as in the baseline", list(now)),
            ([], before) => format!("none; in the baseline {}", list(before)),
            (now, []) => format!("{}; none in the baseline", list(now)),
            (now, before) => format!("{}; in the baseline {}", list(now), list(before)),
        };
        let _ = writeln!(rows, "<li>layer {}: {words}</li>", r.layer);
    }
    match rows.is_empty() {
        true => "<p class=\"quiet\">Every expert is used, in both models.</p>\n".into(),
        false => format!("<h3>Experts never used</h3>\n<ul class=\"unused\">\n{rows}</ul>\n"),
    }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// Small divergences keep their first digits.
fn nats(x: f64) -> String {
    if x == 0.0 || x >= 1e-4 { format!("{x:.5}") } else { format!("{x:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::compare::{CaseChange, ClassChange, Perplexity, Text};

    fn change(fault: &str, load: Vec<u64>) -> Change {
        let d = Divergence {
            positions: 10,
            not_numbers: 0,
            top1_agreement: 0.875,
            mean_kl: 0.0123,
            p95_kl: 2e-6,
            max_kl: 3.5,
        };
        let case = CaseChange {
            id: "a<b".into(),
            class: "c".into(),
            baseline: 3,
            model: 1,
            baseline_fault: None,
            fault: Some(fault.into()),
        };
        let class = ClassChange { class: "c".into(), baseline: 3, model: 1, max: 3 };
        let text = Text {
            tokens: 11,
            window: 2048,
            perplexity: Some(Perplexity { baseline: 7.25, model: 7.5 }),
            divergence: d,
        };
        let unused = (0..load.len()).filter(|e| load[*e] == 0).collect();
        let router = LayerRouting {
            layer: 3,
            experts: load.len(),
            chosen: 2,
            tokens: 10,
            agreement: 0.5,
            overlap: 0.75,
            baseline_unused: Vec::new(),
            unused,
            baseline_load: vec![5; load.len()],
            load,
        };
        Change {
            baseline: "base <i>".into(),
            score: ScoreChange {
                baseline: 3,
                model: 1,
                max: 3,
                difference: -2,
                classes: vec![class],
                cases: vec![case],
                answers: 1,
                same_text: 0,
            },
            predictions: Some(Predictions {
                prompts: Some(d),
                answers: None,
                text: Some(text),
                routers: vec![router],
            }),
            not_compared: None,
        }
    }

    #[test]
    fn every_number_has_its_place() {
        let page = sections(&change("x", vec![12, 8, 0, 0]));
        for text in [
            "-2",
            "87.50 %",
            "0.01230",
            "2.0e-6",
            "7.2500",
            "7.5000",
            "layer 3",
            "50.00 %",
            "2, 3; none in the baseline",
        ] {
            assert!(page.contains(text), "{text} in {page}");
        }
        assert_eq!(page.matches("class=\"cell\"").count(), 4);
        assert_eq!(page.matches("class=\"unused\" d=").count(), 2);
    }

    #[test]
    fn nothing_from_outside_becomes_markup() {
        let page = sections(&change("<script>alert(1)</script>", vec![20]));
        assert!(!page.contains("<script") && !page.contains("a<b") && !page.contains("<i>"), "{page}");
    }
}
