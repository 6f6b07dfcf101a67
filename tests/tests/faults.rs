//! Faults that broke other systems, each as a test that is named after its number.
//!
//! Cases that are covered elsewhere, or wait for a part that does not exist yet:
//!
//! | case | where |
//! |---|---|
//! | F005 an id is kept while its message is dead | `promises::inbox::an_id_is_not_purged_while_its_message_waits_or_is_dead` |
//! | F023 repeats after the commit | `promises::inbox::a_message_delivered_ten_times_has_one_effect_for_each_handler` |
//! | F016 other default isolation, with streams | `promises::lifecycle::a_database_that_defaults_to_serializable_changes_nothing` |
//! | C a handler that fails leaves nothing and is tried again | `promises::transaction::a_failed_call_leaves_nothing_and_the_next_one_counts_once` |
//! | D two handlers of one message, one fails | `promises::transaction::handlers_of_one_message_fail_and_end_each_alone` |
//! | E the caller rolls back | `promises::outbox::a_rolled_back_publish_leaves_nothing_and_a_committed_one_arrives_once` |
//! | F a worker past its lease, in one process | `promises::transaction::a_worker_whose_lease_was_taken_over_rolls_back` |
//! | G opposite batches | `promises::inbox::opposite_batches_on_many_connections_store_each_id_once` |
//! | I order through failures and scale-out | `promises::order`, and here `processes` and `connections` |
//! | J after the window | `promises::inbox::an_id_older_than_the_window_goes_to_the_dead_letters_once`, and here F004 |
//! | F199 a dropped execution frees its key | `promises::commands::a_dropped_execution_leaves_no_key_and_no_connection_behind` |
//! | F004 window against a broker's retention, F007, F008 and F070 towards a broker, F031 to F034, F047, F071, F109, F121, F122 | wait for a broker |
//! | F202 a running message is cancelled by hand | waits for such a command |
//! | F223, F224 web page of an operator | there is none |

#![expect(
    clippy::disallowed_methods,
    reason = "old messages are made by the clock of a publisher"
)]

mod faults {
    mod cancel;
    mod connections;
    mod dedup;
    mod hostile;
    mod leases;
    mod loss;
    mod processes;
    mod relay;
    mod support;
    mod table_transport;
}
