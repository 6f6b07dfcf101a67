//! The files of SQL that are part of the crate, in the order they are applied.

use super::Script;

macro_rules! scripts {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(Script {
            name: $name,
            sql: include_str!(concat!("../../sql/", $folder, "/", $name, ".sql")),
        }),*]
    };
}

/// Numbered, in order; a released one is never edited.
pub(crate) const MIGRATIONS: &[Script] = scripts!("migrations": "0001_tables");

/// One function a file, called ones before their callers; all are replaced when any of them has
/// changed.
pub(crate) const FUNCTIONS: &[Script] = scripts!("functions":
    "wh_setting_number",
    "dedup_horizon",
    "advance_dedup_horizon",
    "drop_unused_payloads",
    "close_empty_streams",
    "close_streams",
    "store_inbox_messages",
    "claim_work",
    "next_in_stream",
    "complete_inbox_message",
    "complete_inbox_messages",
    "report_failures",
    "mark_started",
    "renew_leases",
    "touch_subscriptions",
    "register_instance",
    "rename_service",
    "release_leases",
    "record_heartbeat",
    "deregister_instance",
    "store_outbox_messages",
    "promote_scheduled",
    "deliver_outbox_locally",
    "claim_outbox",
    "wake_outbox_streams",
    "complete_outbox_published",
    "report_outbox_failures",
    "release_relay",
    "cancel_scheduled",
    "store_dead_letters",
    "begin_command",
    "finish_command",
    "purge_deduplication",
    "purge_command_results",
    "retire_handlers",
    "drop_orphan_payloads",
    "ring_orphans",
    "forget_dead_instances",
    "perform_maintenance",
    "requeue_dead_letters",
    "discard_dead_letters",
    "wh_status",
);
