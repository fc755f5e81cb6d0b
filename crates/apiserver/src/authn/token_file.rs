//! Static tokens: `token,user,uid,"group1,group2"` per line (`--token-auth-file`).

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context;
use api::UserInfo;

pub(crate) struct TokenFile(HashMap<String, UserInfo>);

impl TokenFile {
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("token file {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("token file {}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut users = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let fields = split_csv(line);
            let [token, name, uid, rest @ ..] = fields.as_slice() else {
                anyhow::bail!(
                    "line {}: needs at least 3 columns (token, user name, user uid), found {}",
                    number + 1,
                    fields.len()
                );
            };
            anyhow::ensure!(!token.is_empty(), "line {}: empty token", number + 1);
            let groups = rest.first().map(String::as_str).unwrap_or_default();
            let groups = groups.split(',').map(str::trim).filter(|group| !group.is_empty()).map(str::to_owned);
            let user =
                UserInfo { name: name.clone(), uid: uid.clone(), groups: groups.collect(), ..Default::default() };
            users.insert(token.clone(), user);
        }
        Ok(Self(users))
    }

    pub(crate) fn find(&self, token: &str) -> Option<UserInfo> {
        self.0.get(token).cloned()
    }
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
        let file = TokenFile::parse("t1,ann,1,\"system:masters,dev\"\nt2,bob,2\n").unwrap();
        assert_eq!(file.find("t1").unwrap().groups, ["system:masters", "dev"]);
        assert_eq!(file.find("t2").unwrap().name, "bob");
        assert!(file.find("t3").is_none());
        assert!(TokenFile::parse("only,two").is_err());
    }
}
