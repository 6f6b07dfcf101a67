-- Takes away gates that the caller holds and that have nothing behind them.
-- Called by claim_work, next_in_stream and close_streams. FOR UPDATE keeps writers of quiet rows
-- out (they need FOR KEY SHARE); the emptiness check stands in a later statement, whose snapshot is
-- taken under the lock. A gate that a writer holds at this moment stays.
-- Indexes: wh_inbox_streams_pkey, wh_inbox_stream.
CREATE OR REPLACE FUNCTION close_empty_streams(p_lanes text[], p_streams uuid[], p_token uuid)
RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_lanes text[];
  v_streams uuid[];
BEGIN
  SELECT array_agg(l.lane), array_agg(l.stream_id) INTO v_lanes, v_streams FROM (
    SELECT g.lane, g.stream_id FROM unnest(p_lanes, p_streams) k(lane, stream) CROSS JOIN LATERAL (
      SELECT g.lane, g.stream_id FROM wh_inbox_streams g
      WHERE g.lane = k.lane AND g.stream_id = k.stream AND g.lease_token = p_token
        AND NOT EXISTS (SELECT FROM wh_inbox f WHERE f.lane = g.lane AND f.stream_id = g.stream_id)
      FOR UPDATE OF g SKIP LOCKED) g) l;
  IF v_lanes IS NULL THEN
    RETURN;
  END IF;
  DELETE FROM wh_inbox_streams g USING unnest(v_lanes, v_streams) k(lane, stream)
  WHERE g.lane = k.lane AND g.stream_id = k.stream
    AND NOT EXISTS (SELECT FROM wh_inbox f WHERE f.lane = g.lane AND f.stream_id = g.stream_id);
END $$;
COMMENT ON FUNCTION close_empty_streams IS 'Removes held gates with nothing behind them';
