-- The next rows of a stream whose gate the caller holds; renews the lease. Nothing left: the gate is
-- closed, or given back if a writer holds it. A head of a handler the caller lacks: given back.
-- Called by a run that has finished what it had in memory. Indexes: wh_inbox_streams_pkey, wh_inbox_stream.
CREATE OR REPLACE FUNCTION next_in_stream(
  p_lane text, p_stream_id uuid, p_token uuid, p_lease interval, p_run int, p_handlers text[])
RETURNS TABLE (message_id uuid, handler_name text, message_type text, event_data text, metadata text, lane text,
               stream_id uuid, sequence bigint, correlation_id uuid, causation_id uuid, attempts int, losses int,
               received_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
  UPDATE wh_inbox_streams g SET due_at = clock_timestamp() + p_lease
  WHERE g.lane = p_lane AND g.stream_id = p_stream_id AND g.lease_token = p_token;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  RETURN QUERY
  SELECT r.message_id, r.handler_name, r.message_type, coalesce(r.event_data, p.event_data)::text,
    coalesce(r.metadata, p.metadata)::text, r.lane, r.stream_id, r.sequence, r.correlation_id, r.causation_id,
    r.attempts, r.losses, CASE WHEN isfinite(r.received_at) THEN r.received_at END
  FROM (SELECT f.*, bool_and(f.handler_name = ANY (p_handlers)) OVER (ORDER BY f.sequence) AS ours
        FROM (SELECT f.* FROM wh_inbox f WHERE f.lane = p_lane AND f.stream_id = p_stream_id
              ORDER BY f.sequence LIMIT p_run) f) r
  LEFT JOIN LATERAL (SELECT p.event_data, p.metadata FROM wh_inbox_payloads p
                     WHERE r.event_data IS NULL AND p.message_id = r.message_id) p ON true
  WHERE r.ours ORDER BY r.sequence;
  IF NOT FOUND THEN
    PERFORM close_streams(ARRAY[p_lane], ARRAY[p_stream_id], ARRAY[p_token]);
  END IF;
END $$;
COMMENT ON FUNCTION next_in_stream IS 'The next rows of a held stream';
