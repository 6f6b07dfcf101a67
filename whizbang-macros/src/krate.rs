//! What the user's crate calls ours: `whizbang`, unless its `Cargo.toml` renames the dependency.
//!
//! Nothing but the manifest tells, so it is read, line by line: only the few forms in which a
//! dependency is renamed are looked for. Who renames it some other way gives `crate = path`.

use std::{
    fs,
    path::{Path as FilePath, PathBuf},
};

use syn::{Path, parse_quote};

const PACKAGE: &str = "whizbang";

/// The path to use where the attribute names none.
pub(crate) fn default_path() -> Path {
    found()
        .and_then(|name| syn::parse_str(&format!("::{}", name.replace('-', "_"))).ok())
        .unwrap_or_else(|| parse_quote!(::whizbang))
}

/// The new name, if the manifest of the crate that is being compiled gives one; nothing without
/// Cargo.
fn found() -> Option<String> {
    let folder = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).ok()?;
    renamed(&manifest, || workspace_of(&folder))
}

/// The manifest of the workspace.
fn workspace_of(folder: &FilePath) -> Option<String> {
    let is_root = |line: &str| line.starts_with("[workspace]") || line.starts_with("[workspace.");
    folder.ancestors().find_map(|folder| {
        let text = fs::read_to_string(folder.join("Cargo.toml")).ok()?;
        text.lines()
            .any(|line| is_root(line.trim()))
            .then_some(text)
    })
}

fn renamed(manifest: &str, workspace: impl FnOnce() -> Option<String>) -> Option<String> {
    let own: Vec<_> = dependencies(manifest).collect();
    if own.iter().any(Dependency::keeps_its_name) {
        return None;
    }
    if let Some(renamed) = own.iter().find(|dependency| dependency.is_ours()) {
        return Some(renamed.name.to_owned());
    }
    // `wb.workspace = true`: the workspace says what `wb` is.
    let workspace = workspace()?;
    let renamed = dependencies(&workspace).find(Dependency::is_ours)?;
    let is_used = own.iter().any(|dependency| dependency.name == renamed.name);
    is_used.then(|| renamed.name.to_owned())
}

/// One line about a dependency.
struct Dependency<'t> {
    name: &'t str,
    /// What it says, without blanks.
    rest: String,
}

impl Dependency<'_> {
    fn is_ours(&self) -> bool {
        self.rest.contains(&format!("package=\"{PACKAGE}\""))
            || self.rest.contains(&format!("package='{PACKAGE}'"))
    }

    fn keeps_its_name(&self) -> bool {
        self.name == PACKAGE && (self.is_ours() || !self.rest.contains("package="))
    }
}

/// The lines in sections such as `[dependencies]`, `[target.'cfg(unix)'.dev-dependencies]` and
/// `[dependencies.wb]`.
fn dependencies(manifest: &str) -> impl Iterator<Item = Dependency<'_>> {
    let mut section = Section::Other;
    manifest.lines().filter_map(move |line| {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            section = Section::of(header.split(']').next().unwrap_or(header).trim());
            return match section {
                Section::One(name) => Some(Dependency {
                    name,
                    rest: String::new(),
                }),
                _ => None,
            };
        }
        let (key, value) = line.split_once('=')?;
        // `wb.workspace = true` is a line about `wb`.
        let (key, inner) = key.split_once('.').unwrap_or((key, ""));
        let key = key.trim().trim_matches(['"', '\'']);
        let (name, rest) = match section {
            Section::Other => return None,
            Section::All => (key, format!("{inner}={value}")),
            Section::One(name) => (name, format!("{key}={value}")),
        };
        let rest = rest.split_whitespace().collect();
        (!name.starts_with('#')).then_some(Dependency { name, rest })
    })
}

/// What the lines below a header are about.
#[derive(Clone, Copy)]
enum Section<'t> {
    /// `[dependencies]`: each line is about another one.
    All,
    /// `[dependencies.wb]`: all lines are about this one.
    One(&'t str),
    Other,
}

impl<'t> Section<'t> {
    fn of(header: &'t str) -> Self {
        let (before, last) = header.rsplit_once('.').unwrap_or(("", header));
        if last.ends_with("dependencies") {
            Self::All
        } else if before.ends_with("dependencies") {
            Self::One(last.trim_matches(['"', '\'']))
        } else {
            Self::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_in(manifest: &str) -> Option<String> {
        renamed(manifest, || None)
    }

    #[test]
    fn the_forms_of_a_renamed_dependency() {
        for manifest in [
            "[dependencies]\nwb = { package = \"whizbang\", version = \"0.1\" }",
            "[dependencies]\nserde = \"1\"\n \"wb\"={version='0.1',package='whizbang'} # ours",
            "[target.'cfg(unix)'.dev-dependencies]\nwb = { package = \"whizbang\" }",
            "[dependencies.wb]\nversion = \"0.1\"\npackage = \"whizbang\"",
            "[dependencies]\nwb.package = \"whizbang\"\nwb.version = \"0.1\"",
        ] {
            assert_eq!(name_in(manifest).as_deref(), Some("wb"), "{manifest}");
        }
    }

    #[test]
    fn a_dependency_that_keeps_its_name_wins() {
        for manifest in [
            "[dependencies]\nwhizbang = \"0.1\"",
            "[dependencies]\nwhizbang.workspace = true",
            "[dependencies.whizbang]\nversion = \"0.1\"",
            "[dependencies]\nwhizbang = \"2\"\nold = { package = \"whizbang\", version = \"1\" }",
        ] {
            assert_eq!(name_in(manifest), None, "{manifest}");
        }
    }

    #[test]
    fn a_workspace_may_rename_it_for_its_members() {
        let root = "[workspace]\n[workspace.dependencies]\nwb = { package = \"whizbang\" }";
        let name = |manifest| renamed(manifest, || Some(root.to_owned()));
        for manifest in [
            "[dependencies]\nwb.workspace = true",
            "[dependencies]\nwb = { workspace = true }",
            "[dependencies.wb]\nworkspace = true",
        ] {
            assert_eq!(name(manifest).as_deref(), Some("wb"), "{manifest}");
        }
        assert_eq!(name("[dependencies]\nwhizbang = \"0.1\""), None);
        assert_eq!(name("[dependencies]\nserde = \"1\""), None);
    }

    #[test]
    fn everything_else_says_nothing() {
        for manifest in [
            "[package]\nname = \"whizbang\"\nversion = \"0.1.0\"",
            "[dependencies]\n# wb = { package = \"whizbang\" }",
            "[dependencies]\nwhizbang-postgres = { package = \"whizbang-postgres\" }",
            "[features]\nwb = [\"package=whizbang\"]",
        ] {
            assert_eq!(name_in(manifest), None, "{manifest}");
        }
    }
}
