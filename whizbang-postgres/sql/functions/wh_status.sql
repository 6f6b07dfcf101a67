-- What waits, what is leased, what died, and since when. Cheap whatever waits: each count stops at
-- 10,000 and goes along an index, so a count of 10,000 means "at least". Called by operators and
-- dashboards. Indexes: wh_inbox_due, wh_inbox_streams_due, the indexes of wh_outbox, primary keys.
CREATE OR REPLACE FUNCTION wh_status()
RETURNS TABLE (what text, count bigint, oldest timestamptz)
LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
  WITH handler AS MATERIALIZED (SELECT DISTINCT s.handler_name AS name FROM wh_subscriptions s),
  lane AS MATERIALIZED (
    SELECT s.lane AS name FROM wh_subscriptions s
    UNION SELECT l.lane FROM wh_subscriptions s, unnest(s.former_lanes) l(lane)),
  destination AS MATERIALIZED (
    -- A walk from one destination to the next, since the table may be long and its destinations few.
    WITH RECURSIVE step AS (
      (SELECT min(o.destination) AS name FROM wh_outbox o WHERE o.scheduled_at IS NULL AND o.retry_at IS NULL)
      UNION ALL
      SELECT (SELECT min(o.destination) FROM wh_outbox o
              WHERE o.scheduled_at IS NULL AND o.retry_at IS NULL AND o.destination > s.name)
      FROM step s WHERE s.name IS NOT NULL)
    SELECT s.name FROM step s WHERE s.name IS NOT NULL)
  -- Drivers know no infinity, which is what somebody may have written to hold a row back.
  SELECT u.what, u.count, CASE WHEN isfinite(u.oldest) THEN u.oldest END FROM (
  SELECT 'inbox' AS what, count(*) AS count, min(i.received_at) AS oldest FROM (
    SELECT i.received_at FROM wh_inbox i ORDER BY i.message_id LIMIT 10000) i
  UNION ALL
  SELECT 'inbox_due', count(*), min(i.due_at) FROM handler h CROSS JOIN LATERAL (
    SELECT i.due_at FROM wh_inbox i WHERE i.handler_name = h.name AND i.due_at <= clock_timestamp()
    ORDER BY i.due_at LIMIT 10000) i
  UNION ALL
  SELECT 'streams', count(*), NULL FROM (SELECT FROM wh_inbox_streams g ORDER BY g.lane, g.stream_id LIMIT 10000) g
  UNION ALL
  SELECT 'streams_due', count(*), min(g.due_at) FROM lane l CROSS JOIN LATERAL (
    SELECT g.due_at FROM wh_inbox_streams g
    WHERE g.lane = l.name AND g.handler_name IS NULL AND g.due_at <= clock_timestamp()
    ORDER BY g.handler_name, g.due_at LIMIT 10000) g
  UNION ALL
  SELECT 'streams_parked', count(*), NULL FROM lane l CROSS JOIN LATERAL (
    SELECT FROM wh_inbox_streams g WHERE g.lane = l.name AND g.handler_name IS NULL AND g.due_at = 'infinity'
    LIMIT 10000) g
  UNION ALL
  SELECT 'outbox', count(*), min(o.created_at) FROM destination d CROSS JOIN LATERAL (
    SELECT o.created_at FROM wh_outbox o
    WHERE o.destination = d.name AND o.scheduled_at IS NULL AND o.retry_at IS NULL
    ORDER BY o.sequence LIMIT 10000) o
  UNION ALL
  SELECT 'outbox_scheduled', count(*), min(o.scheduled_at) FROM (
    SELECT o.scheduled_at FROM wh_outbox o WHERE o.scheduled_at IS NOT NULL
    ORDER BY o.destination, o.scheduled_at LIMIT 10000) o
  UNION ALL
  SELECT 'outbox_refused', count(*), min(o.created_at) FROM (
    SELECT o.created_at FROM wh_outbox o WHERE o.retry_at IS NOT NULL
    ORDER BY o.destination, o.retry_at LIMIT 10000) o
  UNION ALL
  SELECT 'dead_letters', count(*), min(l.died_at) FROM (
    SELECT l.died_at FROM wh_dead_letters l ORDER BY l.died_at LIMIT 10000) l
  UNION ALL
  SELECT 'instances', count(*), min(i.heartbeat_at) FROM wh_service_instances i) u
$$;
COMMENT ON FUNCTION wh_status IS 'What waits, what is leased, what died';
