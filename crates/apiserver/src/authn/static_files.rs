//! Users in files: static tokens (`--token-auth-file`) and passwords (`--basic-auth-file`).
//!
//! Both are lines of `secret,user,uid,"group1,group2"`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use api::UserInfo;
use tls::Reloading;

/// Tokens and whom they stand for.
pub(crate) struct TokenFile(Reloading<HashMap<String, UserInfo>>);

impl TokenFile {
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let load = |files: &[PathBuf]| Ok(rows(&files[0])?.into_iter().collect());
        Ok(Self(Reloading::new(vec![path.to_owned()], load)?))
    }

    pub(super) fn find(&self, token: &str) -> Option<UserInfo> {
        self.0.get().get(token).cloned()
    }
}

/// User names with their passwords.
pub(crate) struct BasicFile(Reloading<HashMap<String, (String, UserInfo)>>);

impl BasicFile {
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let load = |files: &[PathBuf]| {
            let by_name = |(password, user): (String, UserInfo)| (user.name.clone(), (password, user));
            Ok(rows(&files[0])?.into_iter().map(by_name).collect())
        };
        Ok(Self(Reloading::new(vec![path.to_owned()], load)?))
    }

    pub(super) fn find(&self, name: &str, password: &str) -> Option<UserInfo> {
        let users = self.0.get();
        let (expected, user) = users.get(name)?;
        super::same_secret(expected.as_bytes(), password.as_bytes()).then(|| user.clone())
    }
}

fn rows(path: &Path) -> anyhow::Result<Vec<(String, UserInfo)>> {
    let named = || format!("file {}", path.display());
    parse(&std::fs::read_to_string(path).with_context(named)?).with_context(named)
}

fn parse(text: &str) -> anyhow::Result<Vec<(String, UserInfo)>> {
    let mut users = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let fields = split_csv(line);
        let [secret, name, uid, rest @ ..] = fields.as_slice() else {
            anyhow::bail!(
                "line {}: needs at least 3 columns (secret, user name, user uid), found {}",
                number + 1,
                fields.len()
            );
        };
        anyhow::ensure!(!secret.is_empty(), "line {}: empty token or password", number + 1);
        let groups = rest.first().map(String::as_str).unwrap_or_default();
        let groups = groups.split(',').map(str::trim).filter(|group| !group.is_empty()).map(str::to_owned);
        let user = UserInfo { name: name.clone(), uid: uid.clone(), groups: groups.collect(), ..Default::default() };
        users.push((secret.clone(), user));
    }
    Ok(users)
}

fn split_csv(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for character in line.trim_end().chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            other => {
                if let Some(field) = fields.last_mut() {
                    field.push(other);
                }
            }
        }
    }
    fields.iter().map(|field| field.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_users() {
        let users = parse("t1,ann,1,\"system:masters,dev\"\n\n# nobody\nt2,bob,2\n").unwrap();
        assert_eq!(users[0].1.groups, ["system:masters", "dev"]);
        assert_eq!((users[1].0.as_str(), users[1].1.name.as_str()), ("t2", "bob"));
        assert!(parse("only,two").is_err() && parse(",ann,1").is_err());
    }

    #[test]
    fn passwords_belong_to_names() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("basic");
        std::fs::write(&file, "one,ann,1\ntwo,bob,2,dev\n").unwrap();
        let users = BasicFile::load(&file).unwrap();
        for (name, password, good) in [
            ("ann", "one", true),
            ("ann", "two", false),
            ("ann", "", false),
            ("bob", "two", true),
            ("eve", "one", false),
            ("", "", false),
        ] {
            assert_eq!(users.find(name, password).is_some(), good, "{name}:{password}");
        }
        std::fs::write(dir.path().join("new"), "three,ann,1\n").unwrap();
        std::fs::rename(dir.path().join("new"), &file).unwrap();
        assert!(users.find("ann", "three").is_some() && users.find("ann", "one").is_none());
    }
}
