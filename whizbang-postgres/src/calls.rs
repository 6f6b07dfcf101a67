//! The calls of our functions, with the schema filled in once.

use std::sync::Arc;

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

/// A statement that is the same for the life of the store.
#[derive(Debug, Clone)]
pub(crate) struct Call(Arc<str>);

impl Call {
    pub(crate) fn sql(&self) -> SqlStr {
        AssertSqlSafe(Arc::clone(&self.0)).into_sql_str()
    }
}

/// The schema's name as SQL writes it.
pub(crate) fn quoted(schema: &str) -> String {
    format!("\"{}\"", schema.replace('"', "\"\""))
}

macro_rules! calls {
    ($($name:ident = $statement:literal;)*) => {
        /// One statement for each function that the store calls.
        #[derive(Debug, Clone)]
        pub(crate) struct Calls {
            $(pub(crate) $name: Call,)*
        }

        impl Calls {
            pub(crate) fn new(schema: &str) -> Self {
                let schema = quoted(schema);
                Self {
                    $($name: Call($statement.replace("{s}", &schema).into()),)*
                }
            }
        }
    };
}

calls! {
    register = "SELECT {s}.register_instance($1, $2, $3, $4, $5, $6)";
    heartbeat = "SELECT * FROM {s}.record_heartbeat($1, $2, $3, $4, $5, $6)";
    deregister = "SELECT {s}.deregister_instance($1, $2)";
    release_leases = "SELECT {s}.release_leases($1, $2, $3, false)";
    rename = "SELECT {s}.rename_service($1, $2)";
    advance_horizon = "SELECT {s}.advance_dedup_horizon()";
    maintain = "SELECT task, affected FROM {s}.perform_maintenance($1)";
    status = "SELECT what, count, oldest FROM {s}.wh_status()";
    store_inbox = "SELECT * FROM {s}.store_inbox_messages($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";
    store_poison = "SELECT {s}.store_dead_letters($1, $2, $3, $4, $5, $6, $7)";
    claim = "SELECT * FROM {s}.claim_work($1, $2, $3, $4, $5, $6, $7, $8, $9)";
    next_in_stream = "SELECT * FROM {s}.next_in_stream($1, $2, $3, $4, $5, $6)";
    close_streams = "SELECT {s}.close_streams($1, $2, $3)";
    report = "SELECT message_id, handler_name, outcome FROM {s}.report_failures($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
    complete = "SELECT {s}.complete_inbox_message($1, $2, $3, $4, $5, $6)";
    complete_batch = "SELECT message_id, handler_name, completed FROM {s}.complete_inbox_messages($1, $2, $3, $4, $5)";
    mark_started = "SELECT {s}.mark_started($1, $2, $3, $4, $5)";
    renew = "SELECT message_id, handler_name, lane, stream_id FROM {s}.renew_leases($1, $2, $3, $4, $5, $6, $7)";
    begin_command = "SELECT state, fingerprint, result, error FROM {s}.begin_command($1, $2, $3, $4)";
    finish_command = "SELECT {s}.finish_command($1, $2, $3, $4)";
    store_outbox = "SELECT message_id, destination, was_newly_created FROM {s}.store_outbox_messages($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    deliver_locally = "SELECT * FROM {s}.deliver_outbox_locally($1, $2, $3, $4, $5, $6, $7, $8)";
    claim_outbox = "SELECT * FROM {s}.claim_outbox($1, $2, $3, $4, $5)";
    complete_outbox = "SELECT {s}.complete_outbox_published($1, $2, $3)";
    report_outbox = "SELECT message_id, outcome FROM {s}.report_outbox_failures($1, $2, $3, $4, $5, $6)";
    release_relay = "SELECT {s}.release_relay($1, $2)";
    cancel = "SELECT {s}.cancel_scheduled($1)";
    dead_letters = "SELECT *, event_data::text AS payload FROM {s}.wh_dead_letters WHERE id > $1 ORDER BY id LIMIT $2";
    requeue = "SELECT id, outcome FROM {s}.requeue_dead_letters($1)";
    discard = "SELECT {s}.discard_dead_letters($1)";
    service_name = "SELECT max(setting_value) FROM {s}.wh_settings WHERE setting_key = 'service_name'";
    schema_version = "SELECT max(version) FROM {s}.wh_migrations";
    fenced = "SELECT coalesce(current_setting('whizbang.fence', true), '') = $1";
}
