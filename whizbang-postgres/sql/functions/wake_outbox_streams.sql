-- Lets rows that wait behind a settled one fall due, the first 500 of each stream, once no row of the
-- stream has a time of its own any more: until then those come first, and settling the last of them
-- comes by here again.
-- Called by complete_outbox_published and report_outbox_failures, under the destination's advisory
-- lock: a claim that sets a row aside behind one that is being settled would leave it waiting for ever.
-- Index: wh_outbox_waiting.
CREATE OR REPLACE FUNCTION wake_outbox_streams(p_destination text, p_streams uuid[])
RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
BEGIN
  -- One time for all of them: the claim takes rows of one time by sequence.
  WITH waiting AS MATERIALIZED (
    SELECT w.message_id FROM (SELECT DISTINCT s.stream FROM unnest(p_streams) s(stream)) s CROSS JOIN LATERAL (
      SELECT f.message_id, f.retry_at, bool_and(f.retry_at = 'infinity') OVER () AS all_aside FROM (
        SELECT f.message_id, f.retry_at FROM wh_outbox f
        WHERE f.destination = p_destination AND f.stream_id = s.stream AND f.retry_at IS NOT NULL
        ORDER BY f.sequence LIMIT 500) f) w
    WHERE w.all_aside)
  UPDATE wh_outbox o SET retry_at = v_now FROM waiting w
  WHERE o.destination = p_destination AND o.message_id = w.message_id;
END $$;
COMMENT ON FUNCTION wake_outbox_streams IS 'Lets rows behind a settled one fall due';
