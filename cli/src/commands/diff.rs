//! `prep diff`: what differs between two folders.

use serde_json::{Value, json};
use verify::checkpoint::Checkpoint;
use verify::checkpoint::list_some;
use verify::compare::{Comparison, Pair, compare};
use verify::{Result, Shown};

use super::folder_of;
use crate::args::{Diff, Global};
use crate::console::Console;
use crate::output::{Output, table};

pub fn run(args: &Diff, global: &Global, output: &Output) -> Result<u8> {
    let (a, b) = (Checkpoint::open(folder_of(&args.a)?)?, Checkpoint::open(folder_of(&args.b)?)?);
    let console = Console::new(global.quiet, global.verbose);
    let found = compare(&a, &b, &console)?;
    console.clear();
    print(&found, args.most, output);
    let code = u8::from(!found.same);
    output.result(code, json!(found));
    Ok(code)
}

fn print(found: &Comparison, most: usize, output: &Output) {
    let value =
        |v: &Option<Value>| v.as_ref().map_or("(absent)".to_string(), |v| Shown(&v.to_string()).to_string());
    for key in &found.keys {
        output.text(&format!("{}: {} {} -> {}", key.file, Shown(&key.key), value(&key.a), value(&key.b)));
    }
    if let Some(t) = &found.template {
        output.text(&format!("chat template: {}", t.sentence));
        for p in &t.prompts {
            let [a, b] = &p.lines;
            output.text(&format!("  {}:\n    a {}\n    b {}", p.conversation, Shown(a), Shown(b)));
        }
    }
    found.tokenizer.iter().for_each(|line| output.text(&format!("tokenizer: {}", Shown(line))));
    for f in &found.files {
        let how = match (&f.a, &f.b) {
            (Some(_), None) => "only in the first",
            (None, _) => "only in the second",
            _ => "other bytes",
        };
        output.text(&format!("{}: {how}", Shown(&f.name)));
    }
    print_tensors(found, most, output);
    output.text(&found.verdict);
}

fn print_tensors(found: &Comparison, most: usize, output: &Output) {
    let t = &found.tensors;
    for (which, list) in [("first", &t.only_a), ("second", &t.only_b)] {
        if !list.is_empty() {
            output.text(&format!("weights only in the {which}: {}", list_some(list)));
        }
    }
    if t.different.is_empty() || most == 0 {
        return;
    }
    let mut rows = vec![["weight", "first", "second", "error", "largest"].map(String::from).to_vec()];
    let row = |p: &Pair| {
        let error = p.relative_error.map_or("-".into(), |e| format!("{:.4} %", e * 100.0));
        let largest = p.largest.map_or("-".into(), |l| format!("{l:.3e}"));
        vec![Shown(&p.name).to_string(), p.a.clone(), p.b.clone(), error, largest]
    };
    rows.extend(t.different.iter().take(most).map(row));
    output.text(&table(&rows));
    if t.different.len() > most {
        output.text(&format!("  and {} more (--most N, or --json)", t.different.len() - most));
    }
}
