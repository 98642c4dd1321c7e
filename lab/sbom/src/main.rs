//! Software bills of materials: the packages that are linked into the filter and into the sidecar, as CycloneDX.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use cyclonedx_bom::models::bom::Bom;
use cyclonedx_bom::models::component::{Classification, Component, Components};
use cyclonedx_bom::models::dependency::{Dependencies, Dependency};
use cyclonedx_bom::models::hash::{Hash, HashAlgorithm, HashValue, Hashes};
use cyclonedx_bom::models::license::{LicenseChoice, Licenses};
use cyclonedx_bom::models::metadata::Metadata;
use cyclonedx_bom::prelude::{Purl, SpecVersion};

use sha2::{Digest, Sha256};

/// What is shipped: its file, the package it is built from, and the options that choose what cargo builds.
const SHIPPED: [(&str, &[&str]); 2] = [
    ("sluice.wasm", &["--package", "sluice", "--target", "wasm32-wasip1"]),
    ("sluice-sidecar", &["--package", "host-sidecar"]),
];

/// A package, by name and version.
type Id = (String, String);

/// What is linked together: each package, its licence, and what it uses itself.
#[derive(Debug, Default)]
struct Tree {
    root: Option<Id>,
    packages: BTreeMap<Id, Package>,
}

#[derive(Debug, Default)]
struct Package {
    licence: String,
    uses: BTreeSet<Id>,
}

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("error: name the folder that holds what is shipped; `cargo xtask build` does");
        return ExitCode::FAILURE;
    };
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Writes `*.cdx.json` beside everything that is shipped in a folder.
fn write(dist: &Path) -> Result<()> {
    for (name, options) in SHIPPED {
        let file = dist.join(name);
        let bytes = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let bom = of(options, (name, &sha256_of(&bytes)))?;
        let path = dist.join(format!("{name}.cdx.json"));
        let mut out = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        bom.output_as_json_v1_5(&mut out).with_context(|| format!("cannot write {}", path.display()))?;
        println!("    {}", path.display());
    }
    Ok(())
}

/// The bill of what those options build. It holds neither time nor serial number, so the same sources give the same bill.
fn of(options: &[&str], (name, sum): (&str, &str)) -> Result<Bom> {
    // What only runs while building, as macros do, is no part of what is built.
    let format = ["--edges", "normal,no-proc-macro", "--no-dedupe", "--prefix", "depth", "--format", "\t{p}\t{l}"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let said = cargo.args(["tree", "--locked"]).args(options).args(format).current_dir(&root).output();
    let said = said.context("cannot start cargo")?;
    ensure!(said.status.success(), "cargo tree ended with {}: {}", said.status, String::from_utf8_lossy(&said.stderr));
    let tree = Tree::read(&String::from_utf8_lossy(&said.stdout))?;
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    tree.bill(&checksums_in(&lock), (name, sum))
}

impl Tree {
    /// Reads lines such as `2<TAB>serde v1.0.0 (proc-macro)<TAB>MIT OR Apache-2.0`; a number is how deep a package is used.
    fn read(text: &str) -> Result<Self> {
        let mut tree = Self::default();
        let mut above: Vec<Id> = Vec::new();
        for line in text.lines() {
            let mut fields = line.split('\t');
            let (Some(depth), Some(package), Some(licence)) = (fields.next(), fields.next(), fields.next()) else {
                bail!("cargo tree says {line:?}");
            };
            let depth: usize = depth.parse().with_context(|| format!("cargo tree says {line:?}"))?;
            let mut words = package.split(' ');
            let (Some(name), Some(version)) = (words.next(), words.next()) else { bail!("cargo tree says {line:?}") };
            let id = (name.to_owned(), version.trim_start_matches('v').to_owned());
            // Older packages write so what is an expression of SPDX today.
            tree.packages.entry(id.clone()).or_default().licence = licence.replace('/', " OR ");
            above.truncate(depth);
            match above.last().and_then(|user| tree.packages.get_mut(user)) {
                Some(user) => drop(user.uses.insert(id.clone())),
                None => tree.root = Some(id.clone()),
            }
            above.push(id);
        }
        Ok(tree)
    }

    fn bill(&self, sums: &BTreeMap<Id, String>, (name, sum): (&str, &str)) -> Result<Bom> {
        let root = self.root.as_ref().context("cargo tree has named no package")?;
        let component = |id: &Id, package: &Package| -> Result<Component> {
            let purl = purl(id)?;
            let mut component = Component::new(Classification::Library, &id.0, &id.1, Some(purl.to_string()));
            component.purl = Some(purl);
            component.licenses = Some(Licenses(vec![LicenseChoice::expression(&package.licence)]));
            component.hashes = sums.get(id).map(|sum| sha256(sum));
            Ok(component)
        };
        let mut shipped = component(root, &self.packages[root])?;
        shipped.component_type = Classification::Application;
        shipped.description = Some(cyclonedx_bom::prelude::NormalizedString::new(name));
        shipped.hashes = Some(sha256(sum));
        let others = self.packages.iter().filter(|(id, _)| *id != root);
        let uses = self.packages.iter().map(|(id, package)| {
            let uses = package.uses.iter().map(|id| Ok(purl(id)?.to_string())).collect::<Result<_>>()?;
            Ok(Dependency { dependency_ref: purl(id)?.to_string(), dependencies: uses })
        });
        Ok(Bom {
            version: 1,
            serial_number: None,
            metadata: Some(Metadata { component: Some(shipped), ..Metadata::default() }),
            components: Some(Components(others.map(|(id, package)| component(id, package)).collect::<Result<_>>()?)),
            dependencies: Some(Dependencies(uses.collect::<Result<_>>()?)),
            services: None,
            external_references: None,
            compositions: None,
            properties: None,
            vulnerabilities: None,
            signature: None,
            annotations: None,
            formulation: None,
            spec_version: SpecVersion::V1_5,
        })
    }
}

fn purl((name, version): &Id) -> Result<Purl> {
    Purl::new("cargo", name, version).with_context(|| format!("{name} {version} has no package URL"))
}

fn sha256(sum: &str) -> Hashes {
    Hashes(vec![Hash { alg: HashAlgorithm::SHA_256, content: HashValue(sum.to_owned()) }])
}

fn sha256_of(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// The checksum of every package that has one; those of this workspace have none.
fn checksums_in(lock: &str) -> BTreeMap<Id, String> {
    let packages = lock.split("[[package]]").filter_map(|package| {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""))?;
            Some(line.trim_end_matches('"').to_owned())
        };
        Some(((field("name")?, field("version")?), field("checksum")?))
    });
    packages.collect()
}

#[cfg(test)]
mod tests {
    use cyclonedx_bom::prelude::Validate;
    use serde_json::Value;

    use super::*;

    /// Of both, read back from JSON.
    fn bills() -> [(Bom, Value); 2] {
        SHIPPED.map(|(name, options)| {
            let bom = of(options, (name, &sha256_of(b"shipped"))).unwrap();
            let mut json = Vec::new();
            bom.clone().output_as_json_v1_5(&mut json).unwrap();
            (Bom::parse_from_json_v1_5(json.as_slice()).unwrap(), serde_json::from_slice(&json).unwrap())
        })
    }

    fn names(json: &Value) -> Vec<&str> {
        json["components"].as_array().unwrap().iter().map(|component| component["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn bills_are_valid_and_every_component_is_told_whole() {
        for (bom, json) in bills() {
            let result = bom.validate_version(SpecVersion::V1_5);
            assert!(result.passed(), "{result:?}");
            assert_eq!((&json["bomFormat"], &json["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
            let shipped = &json["metadata"]["component"];
            assert_eq!(shipped["hashes"][0]["content"], sha256_of(b"shipped"));
            for component in json["components"].as_array().unwrap() {
                for field in ["name", "version", "purl"] {
                    assert!(component[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {component}");
                }
                assert!(component["licenses"][0]["expression"].is_string(), "{component}");
                let is_ours = component["name"].as_str().unwrap().starts_with("admission-");
                assert_eq!(component["hashes"][0]["content"].is_string(), !is_ours, "{component}");
            }
        }
    }

    #[test]
    fn each_holds_what_its_target_links_and_nothing_that_only_builds_or_tests() {
        let [(_, filter), (_, sidecar)] = bills();
        let (filter, sidecar) = (names(&filter), names(&sidecar));
        for name in ["admission-core", "proxy-wasm", "serde_json", "wasip1"] {
            assert!(filter.contains(&name), "{name}");
        }
        for name in ["tokio", "criterion", "serde_derive", "syn", "fastrand"] {
            assert!(!filter.contains(&name), "{name}");
        }
        for name in ["admission-core", "tokio", "rustls", "kube"] {
            assert!(sidecar.contains(&name), "{name}");
        }
        assert!(!sidecar.contains(&"proxy-wasm") && !sidecar.contains(&"tempfile"));
    }

    #[test]
    fn a_tree_is_read_with_who_uses_what() {
        let text = "0\ta v0.1.0 (/here)\tApache-2.0\n1\tb v1.0.0\tMIT/Apache-2.0\n2\tc v2.0.0\tMIT\n1\tc v2.0.0\tMIT\n";
        let tree = Tree::read(text).unwrap();
        let id = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(tree.root, Some(id("a", "0.1.0")));
        assert_eq!(tree.packages[&id("a", "0.1.0")].uses, BTreeSet::from([id("b", "1.0.0"), id("c", "2.0.0")]));
        assert_eq!(tree.packages[&id("b", "1.0.0")].uses, BTreeSet::from([id("c", "2.0.0")]));
        assert_eq!(tree.packages[&id("b", "1.0.0")].licence, "MIT OR Apache-2.0");
    }
}
