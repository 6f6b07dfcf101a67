-- Makes the leases of dead instances due now; their tokens stay, so the take-over counts a loss.
-- Called by record_heartbeat and perform_maintenance. Looks only where leases can be: due within one
-- lease from now, at most 10,000 rows a call; SKIP LOCKED, so it waits for nobody.
-- Indexes: wh_inbox_due, wh_inbox_streams_due.
CREATE OR REPLACE FUNCTION release_dead_leases(p_instances uuid[], p_lease interval)
RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_rows bigint;
  v_gates bigint;
BEGIN
  UPDATE wh_inbox w SET due_at = clock_timestamp() FROM (
    SELECT r.* FROM (SELECT DISTINCT s.handler_name FROM wh_subscriptions s) s CROSS JOIN LATERAL (
      SELECT i.message_id, i.handler_name FROM wh_inbox i
      WHERE i.handler_name = s.handler_name AND i.due_at > clock_timestamp()
        AND i.due_at <= clock_timestamp() + p_lease AND i.instance_id = ANY (p_instances)
      LIMIT 10000 FOR UPDATE SKIP LOCKED) r) r
  WHERE w.message_id = r.message_id AND w.handler_name = r.handler_name;
  GET DIAGNOSTICS v_rows = ROW_COUNT;
  UPDATE wh_inbox_streams g SET due_at = clock_timestamp() FROM (
    SELECT r.* FROM (SELECT s.lane FROM wh_subscriptions s UNION
                     SELECT l.lane FROM wh_subscriptions s, unnest(s.former_lanes) l(lane)) s CROSS JOIN LATERAL (
      SELECT i.lane, i.stream_id FROM wh_inbox_streams i
      WHERE i.lane = s.lane AND i.handler_name IS NULL AND i.due_at > clock_timestamp()
        AND i.due_at <= clock_timestamp() + p_lease AND i.instance_id = ANY (p_instances)
      LIMIT 10000 FOR NO KEY UPDATE SKIP LOCKED) r) r
  WHERE g.lane = r.lane AND g.stream_id = r.stream_id;
  GET DIAGNOSTICS v_gates = ROW_COUNT;
  DELETE FROM wh_outbox_relays WHERE instance_id = ANY (p_instances);
  RETURN v_rows + v_gates;
END $$;
COMMENT ON FUNCTION release_dead_leases IS 'Makes the leases of dead instances due now';
