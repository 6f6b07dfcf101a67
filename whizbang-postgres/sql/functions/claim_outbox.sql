-- The next rows for a destination, in order. One relay at a time works for a destination: it holds
-- the lease in wh_outbox_relays, so rows need no leases of their own and streams keep their order.
-- A refused row waits (retry_at); rows behind it in its stream are set aside once ('infinity') and
-- not looked at again until it is settled.
-- Called by the relay. Locks: the relay row, then the destination's advisory lock, under which rows are
-- set aside and woken: a row set aside behind one that is settled at that moment would wait for ever.
-- Indexes: wh_outbox_ready, wh_outbox_waiting, wh_outbox_retry.
CREATE OR REPLACE FUNCTION claim_outbox(p_destination text, p_limit int, p_lease interval, p_token uuid, p_instance_id uuid)
RETURNS TABLE (message_id uuid, message_type text, is_command boolean, event_data text, metadata text, stream_id uuid,
               sequence bigint, correlation_id uuid, causation_id uuid, attempts int, sent_at timestamptz,
               created_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_ids uuid[];
BEGIN
  INSERT INTO wh_outbox_relays AS r (destination, instance_id, lease_token, leased_until)
  VALUES (p_destination, p_instance_id, p_token, clock_timestamp() + p_lease)
  ON CONFLICT (destination) DO UPDATE
  SET instance_id = EXCLUDED.instance_id, lease_token = EXCLUDED.lease_token, leased_until = EXCLUDED.leased_until
  WHERE r.lease_token = p_token OR r.leased_until < clock_timestamp();
  IF NOT FOUND THEN
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended(p_destination, 'wh_outbox_relays'::regclass::oid::bigint));
  PERFORM promote_scheduled(p_destination, p_limit);
  -- Rows behind a refused one are set aside: as many as it takes to see others, within reason.
  FOR v_round IN 1..20 LOOP
    UPDATE wh_outbox o SET retry_at = 'infinity' FROM (
      SELECT b.message_id FROM (
        SELECT f.message_id, f.stream_id FROM wh_outbox f
        WHERE f.destination = p_destination AND f.scheduled_at IS NULL AND f.retry_at IS NULL
        ORDER BY f.sequence LIMIT p_limit) b
      WHERE EXISTS (SELECT FROM wh_outbox w WHERE w.destination = p_destination AND w.stream_id = b.stream_id
                      AND w.retry_at IS NOT NULL)) b
    WHERE o.destination = p_destination AND o.message_id = b.message_id;
    EXIT WHEN NOT FOUND;
  END LOOP;
  SELECT array_agg(c.message_id) INTO v_ids FROM (
    SELECT u.message_id FROM (
      (SELECT w.message_id, w.sequence FROM wh_outbox w
       WHERE w.destination = p_destination AND w.retry_at IS NOT NULL AND w.retry_at <= clock_timestamp()
       ORDER BY w.retry_at, w.sequence LIMIT p_limit)
      UNION ALL
      (SELECT f.message_id, f.sequence FROM wh_outbox f
       WHERE f.destination = p_destination AND f.scheduled_at IS NULL AND f.retry_at IS NULL
       ORDER BY f.sequence LIMIT p_limit)) u
    ORDER BY u.sequence LIMIT p_limit) c;
  -- A limit may have cut off an earlier row of the same stream: then the later one waits as well.
  SELECT array_agg(o.message_id) INTO v_ids FROM wh_outbox o
  WHERE o.destination = p_destination AND o.message_id = ANY (v_ids) AND NOT EXISTS (
    SELECT FROM wh_outbox w WHERE w.destination = p_destination AND w.stream_id = o.stream_id
      AND w.sequence < o.sequence AND w.retry_at IS NOT NULL AND w.message_id <> ALL (v_ids));
  UPDATE wh_outbox o SET sent_at = clock_timestamp()
  WHERE o.destination = p_destination AND o.message_id = ANY (v_ids) AND o.sent_at IS NULL;
  RETURN QUERY
  SELECT o.message_id, o.message_type, o.is_command, o.event_data::text, o.metadata::text, o.stream_id, o.sequence,
    o.correlation_id, o.causation_id, o.attempts, o.sent_at, o.created_at
  FROM wh_outbox o WHERE o.destination = p_destination AND o.message_id = ANY (v_ids)
  ORDER BY o.sequence;
END $$;
COMMENT ON FUNCTION claim_outbox IS 'The next outbox rows for a destination';
