//! The disk that results go to.

use std::path::Path;

use verify::Shown;
use verify::template::Level;

use super::Section;
use crate::commands::free_space;
use crate::console::size;

/// What a 4 B model and its FP8 form take together; less is not worth starting with.
const LEAST: u64 = 12 << 30;

pub fn look(out: &Path) -> Section {
    let mut s = Section::new("disk");
    let Some(free) = free_space(out) else {
        let what = format!("nothing is known of the disk of {}", Shown::path(out));
        s.finding(Level::Warning, what, "check the path");
        return s;
    };
    s.fact("results", format!("{} free where {} goes", size(free), Shown::path(out)));
    if free < LEAST {
        let what = format!("only {} free where {} goes", size(free), Shown::path(out));
        s.finding(Level::Warning, what, "a result needs 2 bytes a parameter in bf16, 1 in FP8, 0.6 in 4 bit: free some, or choose another --out");
    }
    let place = existing(out);
    match tempfile_in(place) {
        Ok(()) => s.fact("writable", Shown::path(place)),
        Err(e) => {
            let what = format!("nothing can be written to {}: {e}", Shown::path(place));
            s.finding(Level::Error, what, "check the permissions, or choose another --out");
        }
    }
    s
}

/// The nearest folder above that is there.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|p| p.is_dir()).unwrap_or(Path::new("."))
}

/// Makes and removes an empty file.
fn tempfile_in(dir: &Path) -> std::io::Result<()> {
    let path = dir.join(format!(".prep-doctor-{}", std::process::id()));
    std::fs::OpenOptions::new().write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)
}
