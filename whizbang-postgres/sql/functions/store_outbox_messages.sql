-- Writes outbox rows. Runs in the user's transaction: one insert, no other locks, no notification.
-- An id that waits for the same destination already is reported as not new.
-- In PL/pgSQL, which keeps its plans: before PostgreSQL 18 a function in SQL plans at every call.
CREATE OR REPLACE FUNCTION store_outbox_messages(
  p_message_ids uuid[], p_destinations text[], p_message_types text[], p_commands boolean[], p_event_data text[],
  p_metadata text[], p_stream_ids uuid[], p_correlation_ids uuid[], p_causation_ids uuid[],
  p_scheduled_at timestamptz[], p_delays interval[])
RETURNS TABLE (message_id uuid, destination text, was_newly_created boolean)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  INSERT INTO wh_outbox AS o (message_id, destination, message_type, is_command, event_data, metadata, stream_id,
    correlation_id, causation_id, scheduled_at)
  SELECT i.id, i.destination, i.type, i.is_command, i.data::json, i.metadata::json, i.stream, i.correlation, i.causation,
    CASE WHEN coalesce(i.at, clock_timestamp() + i.delay) > clock_timestamp()
      THEN coalesce(i.at, clock_timestamp() + i.delay) END
  FROM unnest(p_message_ids, p_destinations, p_message_types, p_commands, p_event_data, p_metadata, p_stream_ids,
              p_correlation_ids, p_causation_ids, p_scheduled_at, p_delays) WITH ORDINALITY
    i(id, destination, type, is_command, data, metadata, stream, correlation, causation, at, delay, ord)
  ORDER BY i.ord
  ON CONFLICT ON CONSTRAINT wh_outbox_pkey DO NOTHING
  RETURNING o.message_id, o.destination, true;
END $$;
COMMENT ON FUNCTION store_outbox_messages IS 'Writes outbox rows in the caller''s transaction';
