//! Packages as `cargo metadata` reports them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// A package of the dependency graph.
#[derive(Debug, Clone, Default)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its licence expression (SPDX), empty if there is none.
    pub licence: String,
    /// True for a member of the workspace.
    pub is_member: bool,
    /// Names of the packages that it needs to be built and run; without dev-dependencies.
    pub dependencies: Vec<String>,
}

/// Returns all packages that the workspace depends on, from the lock file.
///
/// # Errors
///
/// The message of cargo.
pub fn load(root: &Path) -> Result<Vec<Package>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let value: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    Ok(packages(&value))
}

fn packages(value: &Value) -> Vec<Package> {
    let members: Vec<&str> = list(&value["workspace_members"]).filter_map(Value::as_str).collect();
    list(&value["packages"])
        .map(|package| {
            let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
            let dependencies = list(&package["dependencies"])
                .filter(|dependency| dependency["kind"] != "dev")
                .filter_map(|dependency| dependency["name"].as_str())
                .map(str::to_owned)
                .collect();
            Package {
                name: text("name"),
                version: text("version"),
                licence: text("license"),
                is_member: members.contains(&package["id"].as_str().unwrap_or_default()),
                dependencies,
            }
        })
        .collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_dependencies_are_told_apart_from_tests() {
        let value = serde_json::json!({
            "workspace_members": ["path+a"],
            "packages": [
                {"id": "path+a", "name": "a", "version": "1.0.0", "license": "MIT", "dependencies": [
                    {"name": "b", "kind": null}, {"name": "c", "kind": "dev"}, {"name": "d", "kind": "build"}]},
                {"id": "registry+b", "name": "b", "version": "2.0.0", "license": null, "dependencies": []},
            ],
        });
        let packages = packages(&value);
        assert!(packages[0].is_member && !packages[1].is_member);
        assert_eq!(packages[0].dependencies, ["b", "d"]);
        assert_eq!((packages[0].licence.as_str(), packages[1].licence.as_str()), ("MIT", ""));
    }
}
