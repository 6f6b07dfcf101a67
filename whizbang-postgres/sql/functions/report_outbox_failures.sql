-- Reports rows that the transport refused: 'retry' after a delay, holding back the rest of the stream,
-- or 'dead', after which the stream goes on. Of several retries of a stream the first row's delay
-- counts, and every row behind it waits for it, so that within a stream no earlier row ever has a
-- later time than a row behind it. 'lost': another relay has taken over, nothing is changed.
-- Called by the relay. Locks: the relay row, the destination's advisory lock, then the rows.
-- Indexes: wh_outbox_pkey, wh_outbox_waiting.
CREATE OR REPLACE FUNCTION report_outbox_failures(
  p_message_ids uuid[], p_destination text, p_actions text[], p_delays interval[], p_errors text[],
  p_token uuid)
RETURNS TABLE (message_id uuid, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_settled uuid[];
  v_heads uuid[];
  v_sequences bigint[];
  v_streams uuid[];
BEGIN
  PERFORM FROM wh_outbox_relays r
  WHERE r.destination = p_destination AND r.lease_token = p_token FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN QUERY SELECT i.id, 'lost' FROM unnest(p_message_ids) i(id);
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended(p_destination, 'wh_outbox'::regclass::oid::bigint));
  WITH refused AS (
    UPDATE wh_outbox o SET attempts = o.attempts + 1, error = i.error, retry_at = clock_timestamp() + i.delay
    FROM unnest(p_message_ids, p_actions, p_delays, p_errors) i(id, action, delay, error)
    WHERE i.action = 'retry' AND o.message_id = i.id AND o.destination = p_destination
    RETURNING o.message_id, o.stream_id, o.sequence),
  head AS (SELECT r.stream_id, min(r.sequence) AS sequence FROM refused r
           WHERE r.stream_id IS NOT NULL GROUP BY r.stream_id)
  SELECT (SELECT array_agg(r.message_id) FROM refused r), array_agg(h.stream_id), array_agg(h.sequence)
  INTO v_settled, v_heads, v_sequences FROM head h;
  IF v_heads IS NOT NULL THEN
    UPDATE wh_outbox o SET retry_at = 'infinity' FROM (
      SELECT w.message_id FROM unnest(v_heads, v_sequences) h(stream, sequence) CROSS JOIN LATERAL (
        SELECT w.message_id FROM wh_outbox w
        WHERE w.destination = p_destination AND w.stream_id = h.stream AND w.sequence > h.sequence
          AND w.retry_at IS NOT NULL AND w.retry_at <> 'infinity' OFFSET 0) w) w
    WHERE o.message_id = w.message_id AND o.destination = p_destination;
  END IF;

  WITH gone AS (
    DELETE FROM wh_outbox o USING unnest(p_message_ids, p_actions, p_errors) i(id, action, error)
    WHERE i.action = 'dead' AND o.message_id = i.id AND o.destination = p_destination
    RETURNING o.*, i.error AS last_error),
  buried AS (
    INSERT INTO wh_dead_letters (source, message_id, destination, message_type, is_command, event_data, metadata,
      stream_id, sequence, correlation_id, causation_id, attempts, reason, error, received_at)
    SELECT 'outbox', g.message_id, g.destination, g.message_type, g.is_command, g.event_data, g.metadata, g.stream_id,
      g.sequence, g.correlation_id, g.causation_id, g.attempts + 1, 'refused', g.last_error, g.created_at FROM gone g)
  SELECT v_settled || array_agg(g.message_id), array_agg(DISTINCT g.stream_id) FILTER (WHERE g.stream_id IS NOT NULL)
  INTO v_settled, v_streams FROM gone g;
  IF v_streams IS NOT NULL THEN
    PERFORM wake_outbox_streams(p_destination, v_streams);
  END IF;

  RETURN QUERY
  SELECT i.id, CASE WHEN i.id = ANY (v_settled) THEN i.action ELSE 'gone' END
  FROM unnest(p_message_ids, p_actions) i(id, action);
END $$;
COMMENT ON FUNCTION report_outbox_failures IS 'Reports outbox rows that a transport refused';
