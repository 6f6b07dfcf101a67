-- Lets rows that wait behind a settled one fall due, in order, unless an earlier one still waits for
-- its retry. All get the same time, so that a limit on due rows keeps them in order. Called by complete_outbox_published and report_outbox_failures. Index: wh_outbox_waiting.
CREATE OR REPLACE FUNCTION wake_outbox_streams(p_destination text, p_streams uuid[])
RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
  UPDATE wh_outbox o SET retry_at = (SELECT clock_timestamp()) FROM (
    SELECT w.* FROM unnest(p_streams) s(stream) CROSS JOIN LATERAL (
      SELECT f.message_id FROM (
        SELECT f.message_id, f.sequence, f.retry_at FROM wh_outbox f
        WHERE f.destination = p_destination AND f.stream_id = s.stream AND f.retry_at IS NOT NULL
        ORDER BY f.sequence LIMIT 500) f
      WHERE f.retry_at = 'infinity' AND NOT EXISTS (
        SELECT FROM wh_outbox h WHERE h.destination = p_destination AND h.stream_id = s.stream
          AND h.retry_at IS NOT NULL AND h.retry_at <> 'infinity' AND h.sequence < f.sequence
          AND h.retry_at > clock_timestamp())) w) w
  WHERE o.destination = p_destination AND o.message_id = w.message_id
$$;
COMMENT ON FUNCTION wake_outbox_streams IS 'Lets rows behind a settled one fall due';
