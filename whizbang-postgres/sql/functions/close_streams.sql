-- Gives streams back that the caller still holds: empty ones are closed, the others are due now.
-- Called when a run ends before its stream does. Waits for nobody but a completion of the same lease.
-- Index: wh_inbox_streams_pkey.
CREATE OR REPLACE FUNCTION close_streams(p_lanes text[], p_stream_ids uuid[], p_tokens uuid[])
RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_token uuid;
BEGIN
  FOR v_token IN SELECT DISTINCT t.token FROM unnest(p_tokens) t(token) LOOP
    PERFORM close_empty_streams(p_lanes, p_stream_ids, v_token);
  END LOOP;
  UPDATE wh_inbox_streams g SET due_at = clock_timestamp(), lease_token = NULL, instance_id = NULL, handler_name = NULL
  FROM (SELECT g.lane, g.stream_id FROM unnest(p_lanes, p_stream_ids, p_tokens) k(lane, stream, token)
        JOIN wh_inbox_streams g ON g.lane = k.lane AND g.stream_id = k.stream AND g.lease_token = k.token
        ORDER BY g.lane, g.stream_id FOR NO KEY UPDATE OF g) h
  WHERE g.lane = h.lane AND g.stream_id = h.stream_id;
END $$;
COMMENT ON FUNCTION close_streams IS 'Gives held streams back';
