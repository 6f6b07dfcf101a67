//! The server's configuration: quick and forgetful by default, durable on request.

use super::EmbeddedError;

/// Settings that every private server has.
const ALWAYS: &[(&str, &str)] = &[
    ("max_connections", "200"),
    ("unix_socket_permissions", "0700"),
    // Segments of this kind live in the data folder and so go with it, even after `kill -9`.
    ("dynamic_shared_memory_type", "mmap"),
    ("timezone", "UTC"),
    ("log_timezone", "UTC"),
    ("log_checkpoints", "off"),
    ("log_line_prefix", "%m [%p] %q%d "),
];

/// Settings of a server whose data may be lost with the machine.
///
/// `synchronous_commit` stays on: without `fsync` it costs nothing, and services warn without it.
const QUICK: &[(&str, &str)] = &[
    ("fsync", "off"),
    ("full_page_writes", "off"),
    ("max_wal_size", "256MB"),
    ("checkpoint_timeout", "30min"),
];

/// Settings of a server that keeps its promises, for benchmarks and crash tests.
const DURABLE: &[(&str, &str)] = &[
    ("fsync", "on"),
    ("full_page_writes", "on"),
    ("synchronous_commit", "on"),
];

/// The port only names the socket; each server has a folder of its own for it.
pub(super) const PORT_NUMBER: u16 = 5432;

/// Who may connect: whoever gets into the socket's folder, which is its owner.
pub(super) const ACCESS: &str = "local all all trust\nlocal replication all trust\n";

/// The lines to add to `postgresql.conf`; a later line wins over an earlier one.
pub(super) fn lines(
    durable: bool,
    socket_folder: &str,
    own: &[(String, String)],
) -> Result<String, EmbeddedError> {
    let mut text = String::from("\n# Written by whizbang.\n");
    let mode = if durable { DURABLE } else { QUICK };
    for (name, value) in ALWAYS.iter().chain(mode) {
        push(&mut text, name, value);
    }
    // The value is a list, so a folder with a comma or a space needs quotes of its own.
    let folder = format!("\"{}\"", socket_folder.replace('"', "\"\""));
    push(&mut text, "unix_socket_directories", &folder);
    // TCP would be open to every user of the machine.
    push(&mut text, "listen_addresses", "");
    push(&mut text, "port", &PORT_NUMBER.to_string());
    for (name, value) in own {
        if !is_name(name) {
            return Err(EmbeddedError::Setting { name: name.clone() });
        }
        push(&mut text, name, value);
    }
    Ok(text)
}

fn push(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str(" = '");
    text.push_str(&value.replace('\\', "\\\\").replace('\'', "''"));
    text.push_str("'\n");
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_and_own_settings_come_last() {
        let own = [("work_mem".to_owned(), "it's".to_owned())];
        let text = lines(false, "/a, b", &own).unwrap();
        assert!(text.contains("unix_socket_directories = '\"/a, b\"'\n"));
        assert!(text.ends_with("work_mem = 'it''s'\n"));
    }

    #[test]
    fn a_name_that_would_break_the_file_is_refused() {
        let own = [("fsync = on\nport".to_owned(), "1".to_owned())];
        let error = lines(true, "/a", &own).unwrap_err();
        assert!(matches!(error, EmbeddedError::Setting { .. }));
    }
}
