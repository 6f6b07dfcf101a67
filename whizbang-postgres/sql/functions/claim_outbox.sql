-- The next rows for a destination, in order. One relay at a time works for a destination: it holds
-- the lease in wh_outbox_relays, so rows need no leases of their own and streams keep their order.
-- A refused row waits (retry_at); rows behind it in its stream are set aside once ('infinity') and
-- not looked at again until it is settled.
-- Called by the relay. Locks: the relay row, then the destination's advisory lock: while rows are set
-- aside behind another one, that one must not be settled (see wake_outbox_streams).
-- Indexes: wh_outbox_ready, wh_outbox_waiting, wh_outbox_retry, wh_outbox_pkey.
CREATE OR REPLACE FUNCTION claim_outbox(p_destination text, p_limit int, p_lease interval, p_token uuid, p_instance_id uuid)
RETURNS TABLE (message_id uuid, message_type text, is_command boolean, event_data text, metadata text, stream_id uuid,
               sequence bigint, correlation_id uuid, causation_id uuid, attempts int, sent_at timestamptz,
               created_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp();
  v_ids uuid[];
  v_blocked uuid[];
  v_window int := p_limit;
  -- Rows that one call sets aside behind a refused one, so that a long stream is out of the way soon.
  c_window constant int := 5000;
BEGIN
  INSERT INTO wh_outbox_relays AS r (destination, instance_id, lease_token, leased_until)
  VALUES (p_destination, p_instance_id, p_token, v_now + p_lease)
  ON CONFLICT (destination) DO UPDATE
  SET instance_id = EXCLUDED.instance_id, lease_token = EXCLUDED.lease_token, leased_until = EXCLUDED.leased_until
  WHERE r.lease_token = p_token OR r.leased_until < v_now;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended(p_destination, 'wh_outbox'::regclass::oid::bigint));
  PERFORM promote_scheduled(p_destination, p_limit);

  -- Ready rows, apart from those with a waiting one before them in their stream. Only rows that were
  -- looked at for that are taken. A second, wider look follows where a blocked stream filled the first.
  FOR v_round IN 1..2 LOOP
    WITH ready AS MATERIALIZED (
      SELECT f.message_id, f.sequence, f.stream_id IS NOT NULL AND EXISTS (
          SELECT FROM wh_outbox w WHERE w.destination = p_destination AND w.stream_id = f.stream_id
            AND w.retry_at IS NOT NULL AND w.sequence < f.sequence) AS blocked
      FROM (SELECT f.message_id, f.sequence, f.stream_id FROM wh_outbox f
            WHERE f.destination = p_destination AND f.scheduled_at IS NULL AND f.retry_at IS NULL
            ORDER BY f.sequence LIMIT v_window) f)
    SELECT array_agg(r.message_id ORDER BY r.sequence) FILTER (WHERE NOT r.blocked),
      array_agg(r.message_id ORDER BY r.sequence) FILTER (WHERE r.blocked)
    INTO v_ids, v_blocked FROM ready r;
    EXIT WHEN v_blocked IS NULL;
    UPDATE wh_outbox o SET retry_at = 'infinity' FROM unnest(v_blocked) b(id)
    WHERE o.destination = p_destination AND o.message_id = b.id;
    EXIT WHEN coalesce(cardinality(v_ids), 0) >= p_limit;
    v_window := c_window;
  END LOOP;

  SELECT array_agg(c.message_id) INTO v_ids FROM (
    SELECT o.message_id FROM (
      SELECT u.id FROM unnest(v_ids) u(id)
      UNION ALL
      -- Within a stream earlier rows never have a later time, see report_outbox_failures.
      (SELECT w.message_id FROM wh_outbox w
       WHERE w.destination = p_destination AND w.retry_at IS NOT NULL AND w.retry_at <= v_now
       ORDER BY w.retry_at, w.sequence LIMIT p_limit)) u
    JOIN wh_outbox o ON o.destination = p_destination AND o.message_id = u.id
    ORDER BY o.sequence LIMIT p_limit) c;
  UPDATE wh_outbox o SET sent_at = clock_timestamp() FROM unnest(v_ids) u(id)
  WHERE o.destination = p_destination AND o.message_id = u.id AND o.sent_at IS NULL;
  RETURN QUERY
  SELECT o.message_id, o.message_type, o.is_command, o.event_data::text, o.metadata::text, o.stream_id, o.sequence,
    o.correlation_id, o.causation_id, o.attempts, o.sent_at, o.created_at
  FROM unnest(v_ids) u(id) JOIN wh_outbox o ON o.destination = p_destination AND o.message_id = u.id
  ORDER BY o.sequence;
END $$;
COMMENT ON FUNCTION claim_outbox IS 'The next outbox rows for a destination';
