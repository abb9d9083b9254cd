//! Where reports may lie, and writing them there.

use std::path::{Path, PathBuf};

use verify::private::Hiding;
use verify::suite::Form;
use verify::write::write_file;
use verify::{Class, Error, FileName, Result, Shown};

use crate::output::Output;

/// Refuses reports that cannot be written, or that would be files of the model.
pub fn check(reports: &[PathBuf], model: &Path) -> Result<()> {
    reports.iter().try_for_each(|path| Form::of(path).and_then(|_| outside(path, model)))
}

/// Refuses to write `path` where there is no folder, before there is something to report; and into the model folder: its
/// checksums do not know the file, or it would be lost.
pub fn outside(path: &Path, model: &Path) -> Result<()> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(Error::new(Class::Disk, format!("{} cannot be written", Shown::path(path)))
            .found(format!("no folder {}", Shown::path(folder)))
            .hint("make the folder first, or choose another"));
    }
    let real = |p: &Path| p.canonicalize().or_else(|_| std::path::absolute(p));
    match (real(folder), real(model)) {
        (Ok(a), Ok(b)) if a == b => {
            Err(Error::usage(format!("{} lies in the model folder", Shown::path(path)))
                .expected("a place outside: the folder's checksums cover all its files")
                .hint("choose another folder"))
        }
        _ => Ok(()),
    }
}

/// The folder that `path` lies in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Files that tell of a verification.
#[derive(Debug, Default)]
pub struct Reports {
    /// Where to write; the ending tells the form.
    pub files: Vec<PathBuf>,
    /// What is hidden in them.
    pub hiding: Hiding,
}

impl Reports {
    /// Writes each in its form, and says so.
    ///
    /// # Errors
    /// Exit 5 where one cannot be written.
    pub fn write(&self, form: impl Fn(Form) -> Result<String>, output: &Output) -> Result<()> {
        for path in &self.files {
            write(path, &self.hiding.text(&form(Form::of(path)?)?))?;
            output.text(&format!("report: {}", Shown::path(path)));
        }
        Ok(())
    }
}

/// Writes the text of a report, whole or not at all.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let folder = folder_of(path);
    write_file(folder, &FileName::parse(name)?, text.as_bytes())
}
