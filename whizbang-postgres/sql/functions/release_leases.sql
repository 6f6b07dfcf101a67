-- Makes leases of instances due now: all of them, or those under certain tokens. Lost ones keep their
-- tokens, so that the take-over counts a loss; what is given back in good order counts nothing.
-- Called for dead peers by record_heartbeat, for itself by an instance that leaves, and for the
-- leases of a store or a claim whose answer never came. Looks only where leases can be: due within
-- one lease from now, at most 10,000 rows a call; SKIP LOCKED, so it waits for nobody.
-- Indexes: wh_inbox_due, wh_inbox_streams_due.
CREATE OR REPLACE FUNCTION release_leases(p_instances uuid[], p_tokens uuid[], p_lease interval, p_lost boolean)
RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_rows bigint;
  v_gates bigint;
BEGIN
  UPDATE wh_inbox w SET due_at = clock_timestamp(),
    lease_token = CASE WHEN p_lost THEN w.lease_token END,
    instance_id = CASE WHEN p_lost THEN w.instance_id END,
    started_at = CASE WHEN p_lost THEN w.started_at END
  FROM (
    SELECT r.* FROM (SELECT DISTINCT s.handler_name FROM wh_subscriptions s) s CROSS JOIN LATERAL (
      SELECT i.message_id, i.handler_name FROM wh_inbox i
      WHERE i.handler_name = s.handler_name AND i.due_at > clock_timestamp()
        AND i.due_at <= clock_timestamp() + p_lease AND i.instance_id = ANY (p_instances)
        AND (p_tokens IS NULL OR i.lease_token = ANY (p_tokens))
      LIMIT 10000 FOR UPDATE SKIP LOCKED) r) r
  WHERE w.message_id = r.message_id AND w.handler_name = r.handler_name;
  GET DIAGNOSTICS v_rows = ROW_COUNT;
  UPDATE wh_inbox_streams g SET due_at = clock_timestamp(),
    lease_token = CASE WHEN p_lost THEN g.lease_token END,
    instance_id = CASE WHEN p_lost THEN g.instance_id END
  FROM (
    SELECT r.* FROM (SELECT s.lane FROM wh_subscriptions s UNION
                     SELECT l.lane FROM wh_subscriptions s, unnest(s.former_lanes) l(lane)) s CROSS JOIN LATERAL (
      SELECT i.lane, i.stream_id FROM wh_inbox_streams i
      WHERE i.lane = s.lane AND i.handler_name IS NULL AND i.due_at > clock_timestamp()
        AND i.due_at <= clock_timestamp() + p_lease AND i.instance_id = ANY (p_instances)
        AND (p_tokens IS NULL OR i.lease_token = ANY (p_tokens))
      LIMIT 10000 FOR NO KEY UPDATE SKIP LOCKED) r) r
  WHERE g.lane = r.lane AND g.stream_id = r.stream_id;
  GET DIAGNOSTICS v_gates = ROW_COUNT;
  IF p_tokens IS NULL THEN
    DELETE FROM wh_outbox_relays WHERE instance_id = ANY (p_instances);
  END IF;
  RETURN v_rows + v_gates;
END $$;
COMMENT ON FUNCTION release_leases IS 'Makes leases of instances due now';
