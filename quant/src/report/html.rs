//! The page: errors of all groups before and after, the worst of them, scales of what flows through the model, and how
//! experts were served.

use std::fmt::Write;

use verify::suite::{document, escape};

use super::{Calibration, ExpertTokens, FLOOR, LayerError, ScaleFound};

/// The whole page, one file without scripts. `title` is the model, `facts` are further figures by name.
pub fn page(title: &str, facts: &[(&str, String)], calibration: &Calibration) -> String {
    let body = [
        header(title, facts, calibration),
        errors(calibration),
        worst(calibration),
        scales(calibration),
        experts(calibration),
    ];
    document(&format!("Quantized: {title}"), &body.concat())
}

fn header(title: &str, facts: &[(&str, String)], c: &Calibration) -> String {
    let (rtn, awq) = c.means();
    let mut all = Vec::new();
    if !c.errors.is_empty() {
        all.push(("groups", c.errors.len().to_string()));
        all.push(("mean error, round to nearest", number(rtn)));
        all.push(("mean error, as written", number(awq)));
    }
    if !c.ranges.is_empty() {
        all.push(("calibrated scales", c.ranges.len().to_string()));
    }
    all.extend(facts.iter().map(|(k, v)| (*k, v.clone())));
    let facts: String = all
        .iter()
        .map(|(k, v)| format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(k), escape(v)))
        .collect();
    format!(
        "<header class=\"pass\">\n<p class=\"verdict\">Quantized</p>\n<h1>{}</h1>\n<dl>\n{facts}</dl>\n</header>\n",
        escape(title)
    )
}

/// A dot for each error, grey before and coloured after, over a logarithmic axis.
fn errors(c: &Calibration) -> String {
    const WIDTH: f64 = 900.0;
    const HEIGHT: f64 = 260.0;
    const LEFT: f64 = 62.0;
    const TOP: f64 = 10.0;
    const BASE: f64 = 236.0;
    let seen = || c.errors.iter().flat_map(|e| [e.rtn, e.awq]).filter(|v| v.is_finite() && *v > 0.0);
    let Some(least) = seen().reduce(f64::min) else { return String::new() };
    let most = seen().fold(least, f64::max);
    let (low, high) = (least.log10().floor(), most.log10().ceil().max(least.log10().floor() + 1.0));
    let y = |v: f64| match v > 0.0 && v.is_finite() {
        true => BASE - (BASE - TOP) * (v.log10() - low) / (high - low),
        false => BASE,
    };
    let step = (WIDTH - LEFT) / c.errors.len() as f64;
    let x = |at: usize| LEFT + (at as f64 + 0.5) * step;
    let mut out = format!(
        "<section>\n<h2>Error of each group, before and after</h2>\n\
         <p class=\"quiet\"><span class=\"key p-control\"></span>round to nearest<span class=\"key p-full\"></span>as written<span class=\"key p-none\"></span>as written, and worse</p>\n\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"error of each group before and after\">\n"
    );
    // At most twelve lines, however far errors lie apart.
    let every = ((high - low) / 12.0).ceil().max(1.0) as usize;
    for power in (low as i32..=high as i32).step_by(every) {
        let at = y(10f64.powi(power));
        let _ = writeln!(
            out,
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{WIDTH}\" y2=\"{at:.1}\"/><text x=\"{:.0}\" y=\"{:.1}\">1e{power}</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    let radius = (step * 0.35).clamp(0.8, 4.0);
    for (at, e) in c.errors.iter().enumerate() {
        let class = if e.awq > e.rtn { "p-none" } else { "p-full" };
        let _ = writeln!(
            out,
            "<g><title>{}</title><line class=\"level\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/><circle class=\"p-control\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\"/><circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\"/></g>",
            escape(&told(e)),
            y(e.rtn),
            y(e.awq),
            y(e.rtn),
            y(e.awq),
            x = x(at)
        );
    }
    // Layers below the axis, no closer than their labels are wide.
    let mut free = 0.0;
    for (at, e) in c.errors.iter().enumerate() {
        let first = at == 0 || c.errors[at - 1].layer != e.layer;
        if first && x(at) >= free {
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.0}\" style=\"text-anchor:middle\">{}</text>",
                x(at),
                BASE + 18.0,
                e.layer
            );
            free = x(at) + 26.0;
        }
    }
    out.push_str("</svg>\n<p class=\"quiet\">Groups in the order of the model; numbers below are layers. Mean squared error of the output on the calibration tokens.</p>\n</section>\n");
    out
}

fn told(e: &LayerError) -> String {
    format!("layer {} {}: {} before, {} after, {}", e.layer, e.group, number(e.rtn), number(e.awq), ratio(e))
}

fn ratio(e: &LayerError) -> String {
    e.ratio.map_or("left as it is".into(), |r| format!("ratio {r:.2}"))
}

fn worst(c: &Calibration) -> String {
    if c.errors.is_empty() {
        return String::new();
    }
    let row = |e: &LayerError| {
        format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            e.layer,
            escape(&e.group),
            number(e.rtn),
            number(e.awq),
            ratio(e)
        )
    };
    let rows: String = c.worst(10).into_iter().map(row).collect();
    format!(
        "<section>\n<h2>Largest errors</h2>\n<table>\n<thead><tr><th>layer</th><th>group</th><th>before</th><th>after</th><th>chosen</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</section>\n"
    )
}

fn scales(c: &Calibration) -> String {
    let figure = |v: Option<f64>| v.map_or(String::new(), number);
    let row = |s: &ScaleFound| {
        let share = s.clipped.map_or(String::new(), |c| format!("{:.4} %", 100.0 * c));
        format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{share}</td></tr>\n",
            s.layer,
            escape(&s.of),
            number(s.scale),
            number(s.largest),
            figure(s.rms)
        )
    };
    let rows: String = c.ranges.iter().map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!(
            "<section>\n<h2>Scales of inputs, keys and values</h2>\n<p class=\"quiet\">A scale is the largest size over 448. Beyond half: the share of the second half of the samples that is larger than all of the first, about what new data will have clipped.</p>\n<table>\n<thead><tr><th>layer</th><th>of</th><th>scale</th><th>largest</th><th>root mean square</th><th>beyond half</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</section>\n"
        ),
    }
}

fn experts(c: &Calibration) -> String {
    let row = |e: &ExpertTokens| {
        let mut sorted = e.tokens.clone();
        sorted.sort_unstable();
        let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else { return String::new() };
        let few = sorted.iter().filter(|n| **n < FLOOR).count();
        format!(
            "<tr><th scope=\"row\">{}</th><td>{least}</td><td>{}</td><td>{most}</td><td>{few} of {}</td></tr>\n",
            e.layer,
            sorted[sorted.len() / 2],
            sorted.len()
        )
    };
    let rows: String = c.experts.iter().map(row).collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!(
            "<section>\n<h2>Tokens of each expert</h2>\n<table>\n<thead><tr><th>layer</th><th>least</th><th>median</th><th>most</th><th>below {FLOOR}</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</section>\n"
        ),
    }
}

fn number(v: f64) -> String {
    format!("{v:.3e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calibration() -> Calibration {
        let error = |layer: usize, group: &str, ratio, rtn, awq| LayerError {
            layer,
            group: group.into(),
            ratio,
            rtn,
            awq,
        };
        Calibration {
            errors: vec![
                error(0, "input_layernorm", Some(0.5), 1e-3, 2e-4),
                error(0, "up_proj <of> 3", None, 4e-3, 4e-3),
                error(1, "input_layernorm", Some(0.25), 1e-4, 2e-4),
            ],
            ranges: vec![ScaleFound {
                layer: 1,
                of: "model.layers.1.self_attn.k_scale".into(),
                scale: 0.025,
                largest: 11.2,
                rms: Some(0.9),
                clipped: Some(0.00015),
            }],
            experts: vec![ExpertTokens { layer: 1, tokens: vec![40, 3, 900, 15] }],
        }
    }

    #[test]
    fn scales_are_listed_where_there_are_some() {
        let with = page("m", &[], &calibration());
        let row = "<td>model.layers.1.self_attn.k_scale</td><td>2.500e-2</td><td>1.120e1</td><td>9.000e-1</td><td>0.0150 %</td>";
        assert!(with.contains(row) && with.contains("calibrated scales"));
        let without = Calibration { ranges: Vec::new(), ..calibration() };
        assert!(!page("m", &[], &without).contains("Scales of inputs"));
    }

    #[test]
    fn page_stands_alone_and_follows_light_and_dark() {
        let page = page("tiny & small", &[("bits per weight", "4.16".into())], &calibration());
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        for bad in ["http://", "https://", "<script", "url(", " src="] {
            assert!(!page.contains(bad), "{bad}");
        }
        assert!(page.contains("default-src 'none'") && page.contains("prefers-color-scheme: dark"));
        assert!(page.contains("tiny &amp; small") && page.contains("4.16"));
        assert!(page.contains("up_proj &lt;of&gt; 3") && !page.contains("<of>"));
    }

    #[test]
    fn every_group_has_its_dots_and_the_worse_ones_are_marked() {
        let page = page("m", &[], &calibration());
        assert_eq!(page.matches("<circle class=\"p-control\"").count(), 3);
        assert_eq!(page.matches("<circle class=\"p-full\"").count(), 2);
        assert_eq!(page.matches("<circle class=\"p-none\"").count(), 1);
        assert!(page.contains("layer 0 input_layernorm: 1.000e-3 before, 2.000e-4 after, ratio 0.50"));
        // The axis runs over whole powers of ten: 1e-4 is its end, 1e-2 its top.
        assert!(page.contains("y=\"240.0\">1e-4<") && page.contains("y=\"14.0\">1e-2<"));
        assert!(page.contains("<td>3</td><td>40</td><td>900</td><td>2 of 4</td>"));
        let first = page.find("<tbody>").unwrap();
        assert!(page[first..].starts_with("<tbody>\n<tr><th scope=\"row\">0</th><td>up_proj"));
    }

    #[test]
    fn odd_figures_give_a_page_too() {
        let mut c = calibration();
        c.errors[0].rtn = 0.0;
        c.errors[1].awq = f64::NAN;
        c.errors[2].awq = f64::INFINITY;
        c.experts[0].tokens.clear();
        let text = page("m", &[], &c);
        assert!(
            !text.contains("y=\"NaN") && !text.contains("=\"inf") && !text.contains("Tokens of each expert")
        );
        let empty = page("m", &[], &Calibration::default());
        assert!(!empty.contains("<svg") && empty.ends_with("</html>\n"));
        // Errors from one end of f64 to the other still give few lines.
        c.errors[0].rtn = 1e-300;
        c.errors[2].awq = 1e300;
        assert!(page("m", &[], &c).matches("class=\"axis\"").count() < 20);
    }
}
