-- The dead letters as the ledger compares them. Called once at the end. No locks.
SELECT source, reason, coalesce(handler_name, '-') AS handler_name, coalesce(is_command, false) AS is_command,
  message_id, raw_data, event_data::text AS event_data
FROM wh_dead_letters ORDER BY id
