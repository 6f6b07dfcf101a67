//! `cargo xtask dependencies`: licenses, bans and sources of what we build on, offline.

mod license;

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::cargo::{cargo, host, workspace};

/// The arguments of `cargo xtask dependencies`: none so far.
#[derive(Debug, clap::Args)]
pub(crate) struct Dependencies {}

/// What of `deny.toml` is checked here; `cargo deny` checks the rest.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for our own.
    source: Option<String>,
}

impl Dependencies {
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        let rules = read_rules()?;
        let packages = read_packages()?;
        let problems: Vec<String> = packages
            .iter()
            .flat_map(|package| package.problems(&rules))
            .collect();
        for problem in &problems {
            eprintln!("xtask: {problem}");
        }
        report_generations(&packages);
        eprintln!(
            "xtask: {} packages, {} problems",
            packages.len(),
            problems.len()
        );
        Ok(match problems.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

fn read_rules() -> anyhow::Result<Rules> {
    let file = workspace().join("deny.toml");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("could not read {}", file.display()))?;
    toml::from_str(&text).context("deny.toml does not have the expected parts")
}

/// What is built on this machine, as the lock file has it; nothing is fetched.
fn read_packages() -> anyhow::Result<Vec<Package>> {
    let output = cargo()
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .args(["--all-features", "--filter-platform", &host()?])
        .output()
        .context("could not run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cargo metadata printed something else")?;
    Ok(metadata.packages)
}

impl Package {
    fn problems(&self, rules: &Rules) -> Vec<String> {
        let who = format!("{} {}", self.name, self.version);
        let mut problems = Vec::new();
        match &self.license {
            Some(license) if license::is_allowed(license, &rules.licenses.allow) => {}
            Some(license) => problems.push(format!("{who} has the license `{license}`")),
            None => problems.push(format!("{who} names no license")),
        }
        if rules.bans.deny.iter().any(|ban| ban.name == self.name) {
            problems.push(format!("{who} is banned"));
        }
        if let Some(source) = &self.source {
            let registry = source.strip_prefix("registry+").unwrap_or(source);
            if !rules.sources.allow_registry.iter().any(|it| it == registry) {
                problems.push(format!("{who} comes from {source}"));
            }
        }
        problems
    }
}

/// Several versions of one crate are worth knowing, and no error.
fn report_generations(packages: &[Package]) {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let of_name = versions.entry(&package.name).or_default();
        of_name.push(&package.version);
    }
    for (name, versions) in versions {
        if versions.len() > 1 {
            eprintln!("xtask: {name} is there {}", versions.join(" and "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_can_be_read_and_each_of_them_is_applied() {
        let rules = read_rules().unwrap();
        let package = |name: &str, license: Option<&str>, source: Option<&str>| Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: license.map(str::to_owned),
            source: source.map(str::to_owned),
        };
        let ours = "registry+https://github.com/rust-lang/crates.io-index";
        let problems = |package: Package| package.problems(&rules).len();
        assert_eq!(problems(package("good", Some("MIT"), Some(ours))), 0);
        assert_eq!(problems(package("good", Some("MIT"), None)), 0);
        assert_eq!(problems(package("nameless", None, Some(ours))), 1);
        assert_eq!(problems(package("copyleft", Some("GPL-3.0"), None)), 1);
        assert_eq!(problems(package("native-tls", Some("MIT"), None)), 1);
        let elsewhere = Some("git+https://example.com/good");
        assert_eq!(problems(package("good", Some("MIT"), elsewhere)), 1);
    }
}
