-- Throws dead letters away; a stream that was parked behind one goes on. Called by an operator.
-- Locks: the dead letters, then gates in (lane, stream) order.
CREATE OR REPLACE FUNCTION discard_dead_letters(p_ids bigint[])
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
  v_gone bigint;
  v_lanes text[];
  v_streams uuid[];
BEGIN
  WITH gone AS (
    DELETE FROM wh_dead_letters d USING (
      SELECT l.id FROM wh_dead_letters l WHERE l.id = ANY (p_ids) ORDER BY l.id FOR UPDATE) l
    WHERE d.id = l.id RETURNING d.lane, d.stream_id, d.parked)
  SELECT count(*), array_agg(g.lane) FILTER (WHERE g.parked), array_agg(g.stream_id) FILTER (WHERE g.parked)
  INTO v_gone, v_lanes, v_streams FROM gone g;
  UPDATE wh_inbox_streams g SET due_at = clock_timestamp(), handler_name = NULL FROM (
    SELECT o.lane, o.stream_id FROM wh_inbox_streams o
    WHERE (o.lane, o.stream_id) IN (SELECT k.lane, k.stream FROM unnest(v_lanes, v_streams) k(lane, stream))
      AND o.due_at = 'infinity'
    ORDER BY o.lane, o.stream_id FOR NO KEY UPDATE) o
  WHERE g.lane = o.lane AND g.stream_id = o.stream_id;
  RETURN v_gone;
END $$;
COMMENT ON FUNCTION discard_dead_letters IS 'Throws dead letters away';
