//! The user that the server runs as: PostgreSQL refuses to run as root.

use std::{fs, os::unix::process::CommandExt, path::Path, process::Command};

use rustix::process::{getegid, geteuid};

/// Used when a root-only system has neither a `postgres` nor a `nobody` user.
const OVERFLOW_ID: u32 = 65534;

/// A user and group to run programs as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// We are root and this account is somebody else.
    pub(super) dropped: bool,
}

impl Account {
    /// The current user, or the one that root steps down to.
    pub(super) fn choose() -> Self {
        if !geteuid().is_root() {
            return Self {
                uid: geteuid().as_raw(),
                gid: getegid().as_raw(),
                dropped: false,
            };
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let (uid, gid) = ["postgres", "nobody"]
            .iter()
            .find_map(|name| look_up(&users, name))
            .unwrap_or((OVERFLOW_ID, OVERFLOW_ID));
        Self {
            uid,
            gid,
            dropped: true,
        }
    }

    /// Makes a command run as this account, free of the caller's PostgreSQL environment.
    ///
    /// The home folder of the caller is closed to a dropped account, so `HOME` goes as well.
    pub(super) fn apply<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        command.env("LC_ALL", "C");
        if self.dropped {
            command.env("HOME", "/").uid(self.uid).gid(self.gid);
        }
        command
    }

    /// Whether this account can get to a folder through all the folders above it.
    pub(super) fn reaches(&self, path: &Path) -> bool {
        use std::os::unix::fs::MetadataExt;
        path.ancestors().all(|folder| {
            fs::metadata(folder).is_ok_and(|meta| {
                let shift = if meta.uid() == self.uid {
                    6
                } else if meta.gid() == self.gid {
                    3
                } else {
                    0
                };
                meta.mode() >> shift & 1 == 1
            })
        })
    }

    /// The owner to give files to, where that is not the current user.
    pub(super) fn owner(&self) -> Option<(u32, u32)> {
        self.dropped.then_some((self.uid, self.gid))
    }
}

/// Finds the user and group id of a user in the text of `/etc/passwd`.
fn look_up(users: &str, name: &str) -> Option<(u32, u32)> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(name) {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        (uid != 0).then_some((uid, gid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users = "root:x:0:0::/root:/bin/sh\npostgres2:x:7:8::/:/x\npostgres:x:107:114::/:/x\n";
        assert_eq!(look_up(users, "postgres"), Some((107, 114)));
        assert_eq!(look_up(users, "nobody"), None);
    }

    #[test]
    fn an_alias_of_root_is_no_ordinary_user() {
        assert_eq!(look_up("postgres:x:0:0::/:/bin/sh", "postgres"), None);
    }
}
