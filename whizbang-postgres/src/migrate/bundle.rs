//! The files of SQL that are part of the crate, in the order they are applied.

use super::Script;

macro_rules! scripts {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(Script {
            name: $name,
            sql: include_str!(concat!("../../", $folder, "/", $name, ".sql")),
        }),*]
    };
}

/// Numbered, in order; a released one is never edited.
pub(crate) const MIGRATIONS: &[Script] = scripts!("migrations":);

/// One function a file; all are replaced when any of them has changed.
pub(crate) const FUNCTIONS: &[Script] = scripts!("functions":);
