-- Removes acknowledged rows, whoever relays now: what the transport has, it has. Unknown ids are
-- ignored. Rows that waited behind a removed one fall due, at most 500 of each stream.
-- Called by the relay. Locks: the destination's advisory lock, then the rows.
-- Indexes: wh_outbox_pkey, wh_outbox_waiting.
CREATE OR REPLACE FUNCTION complete_outbox_published(p_message_ids uuid[], p_destination text, p_token uuid)
RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_removed bigint;
  v_streams uuid[];
BEGIN
  IF cardinality(p_message_ids) = 0 THEN
    RETURN 0;
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended(p_destination, 'wh_outbox'::regclass::oid::bigint));
  WITH gone AS (
    DELETE FROM wh_outbox o USING (
      SELECT f.message_id FROM wh_outbox f
      WHERE f.destination = p_destination AND f.message_id = ANY (p_message_ids)
      ORDER BY f.message_id FOR UPDATE) f
    WHERE o.destination = p_destination AND o.message_id = f.message_id
    RETURNING o.stream_id, o.retry_at)
  SELECT count(*), array_agg(DISTINCT g.stream_id) FILTER (WHERE g.retry_at IS NOT NULL AND g.stream_id IS NOT NULL)
  INTO v_removed, v_streams FROM gone g;
  IF v_streams IS NOT NULL THEN
    PERFORM wake_outbox_streams(p_destination, v_streams);
  END IF;
  RETURN v_removed;
END $$;
COMMENT ON FUNCTION complete_outbox_published(uuid[], text, uuid) IS 'Removes acknowledged outbox rows of a destination';

-- The same for all destinations at once.
CREATE OR REPLACE FUNCTION complete_outbox_published(p_message_ids uuid[])
RETURNS bigint LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
  SELECT coalesce(sum(complete_outbox_published(p_message_ids, d.destination, NULL)), 0)::bigint
  FROM (SELECT DISTINCT o.destination FROM wh_outbox o WHERE o.message_id = ANY (p_message_ids)
        ORDER BY o.destination) d
$$;
COMMENT ON FUNCTION complete_outbox_published(uuid[]) IS 'Removes acknowledged outbox rows of all destinations';
