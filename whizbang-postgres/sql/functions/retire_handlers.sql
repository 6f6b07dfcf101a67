-- Forgets handlers that no instance has had for the retention. Rows that still wait for them go to
-- the dead letters, so nothing is lost; the subscription goes when none is left.
-- Called by perform_maintenance. Indexes: wh_inbox_due, wh_inbox_stream.
CREATE OR REPLACE FUNCTION retire_handlers(p_batch int)
RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_since timestamptz := clock_timestamp() - make_interval(hours => wh_setting_number('subscription_retention_hours', 24));
  v_handlers text[];
  v_lanes text[];
  v_streams uuid[];
  v_buried bigint;
  v_marks bigint;
BEGIN
  SELECT array_agg(s.handler_name) INTO v_handlers FROM (
    SELECT s.handler_name FROM wh_subscriptions s
    GROUP BY s.handler_name HAVING max(s.last_seen_at) < v_since) s;
  -- Single stale lines of a handler that lives on: it no longer listens to that type.
  DELETE FROM wh_subscriptions s WHERE s.last_seen_at < v_since AND s.handler_name <> ALL (coalesce(v_handlers, '{}'));
  IF v_handlers IS NULL THEN
    RETURN 0;
  END IF;
  SELECT array_agg(DISTINCT l.lane) INTO v_lanes FROM wh_subscriptions s, unnest(s.lane || s.former_lanes) l(lane)
  WHERE s.handler_name = ANY (v_handlers);
  WITH waiting AS (
    (SELECT w.message_id, w.handler_name FROM unnest(v_handlers) h(handler) CROSS JOIN LATERAL (
       SELECT i.message_id, i.handler_name FROM wh_inbox i
       WHERE i.handler_name = h.handler AND i.due_at IS NOT NULL LIMIT p_batch) w)
    UNION
    (SELECT w.message_id, w.handler_name FROM unnest(v_lanes) l(lane) CROSS JOIN LATERAL (
       SELECT i.message_id, i.handler_name FROM wh_inbox i
       WHERE i.lane = l.lane AND i.stream_id IS NOT NULL AND i.handler_name = ANY (v_handlers) LIMIT p_batch) w)
    LIMIT p_batch),
  locked AS (
    SELECT i.message_id, i.handler_name FROM waiting w JOIN wh_inbox i
      ON i.message_id = w.message_id AND i.handler_name = w.handler_name FOR UPDATE OF i SKIP LOCKED),
  gone AS (
    DELETE FROM wh_inbox i USING locked w WHERE i.message_id = w.message_id AND i.handler_name = w.handler_name
    RETURNING i.*),
  buried AS (
    INSERT INTO wh_dead_letters (source, message_id, handler_name, message_type, is_command, event_data, metadata, lane,
      stream_id, sequence, correlation_id, causation_id, attempts, losses, reason, error, received_at)
    SELECT 'inbox', g.message_id, g.handler_name, g.message_type, g.is_command, coalesce(g.event_data, p.event_data),
      coalesce(g.metadata, p.metadata), g.lane, g.stream_id, g.sequence, g.correlation_id, g.causation_id, g.attempts,
      g.losses, 'no_handler', coalesce(g.error, 'no instance has had handler ' || g.handler_name || ' since ' || v_since),
      g.received_at
    FROM gone g LEFT JOIN wh_inbox_payloads p ON p.message_id = g.message_id AND g.event_data IS NULL
    RETURNING 1)
  SELECT count(*) INTO v_buried FROM buried;
  -- What stands behind them in shared lanes is anybody's now.
  UPDATE wh_inbox_streams g SET handler_name = NULL FROM (
    SELECT o.lane, o.stream_id FROM wh_inbox_streams o
    WHERE o.lane = ANY (v_lanes) AND o.handler_name = ANY (v_handlers) AND o.due_at <= 'infinity'
    LIMIT p_batch FOR NO KEY UPDATE SKIP LOCKED) o
  WHERE g.lane = o.lane AND g.stream_id = o.stream_id;
  GET DIAGNOSTICS v_marks = ROW_COUNT;
  IF v_buried < p_batch AND v_marks < p_batch THEN
    DELETE FROM wh_subscriptions s WHERE s.handler_name = ANY (v_handlers) AND s.last_seen_at < v_since
      AND NOT EXISTS (SELECT FROM wh_inbox i WHERE i.handler_name = s.handler_name AND i.due_at IS NOT NULL)
      AND NOT EXISTS (SELECT FROM wh_inbox i WHERE i.lane = ANY (v_lanes) AND i.stream_id IS NOT NULL
                        AND i.handler_name = s.handler_name);
    -- Gates that nobody claims any more. As everywhere: lock first, look again in a new statement.
    SELECT array_agg(o.lane), array_agg(o.stream_id) INTO v_lanes, v_streams FROM (
      SELECT o.lane, o.stream_id FROM wh_inbox_streams o
      WHERE o.lane = ANY (v_lanes) AND o.due_at <> 'infinity' AND o.lease_token IS NULL
        AND NOT EXISTS (SELECT FROM wh_inbox i WHERE i.lane = o.lane AND i.stream_id = o.stream_id)
      LIMIT p_batch FOR UPDATE SKIP LOCKED) o;
    DELETE FROM wh_inbox_streams g USING unnest(v_lanes, v_streams) k(lane, stream)
    WHERE g.lane = k.lane AND g.stream_id = k.stream
      AND NOT EXISTS (SELECT FROM wh_inbox i WHERE i.lane = g.lane AND i.stream_id = g.stream_id);
  END IF;
  RETURN v_buried;
END $$;
COMMENT ON FUNCTION retire_handlers IS 'Forgets handlers that no instance has had for long';
