-- What waits, what is leased, what died, and since when; counts stop at 100,000, so that looking is
-- cheap whatever waits. Called by operators and dashboards.
CREATE OR REPLACE FUNCTION wh_status()
RETURNS TABLE (what text, count bigint, oldest timestamptz) LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
  SELECT 'inbox', count(*), min(i.received_at) FROM (SELECT received_at FROM wh_inbox LIMIT 100000) i
  UNION ALL
  SELECT 'inbox_leased', count(*), min(i.received_at) FROM (
    SELECT received_at FROM wh_inbox WHERE lease_token IS NOT NULL AND due_at > clock_timestamp() LIMIT 100000) i
  UNION ALL
  SELECT 'streams', count(*), min(g.due_at) FROM (SELECT due_at FROM wh_inbox_streams LIMIT 100000) g
  UNION ALL
  SELECT 'streams_parked', count(*), NULL FROM (
    SELECT 1 FROM wh_inbox_streams WHERE due_at = 'infinity' LIMIT 100000) g
  UNION ALL
  SELECT 'outbox', count(*), min(o.created_at) FROM (SELECT created_at FROM wh_outbox LIMIT 100000) o
  UNION ALL
  SELECT 'outbox_scheduled', count(*), min(o.scheduled_at) FROM (
    SELECT scheduled_at FROM wh_outbox WHERE scheduled_at IS NOT NULL LIMIT 100000) o
  UNION ALL
  SELECT 'dead_letters', count(*), min(l.died_at) FROM (SELECT died_at FROM wh_dead_letters LIMIT 100000) l
  UNION ALL
  SELECT 'instances', count(*), min(i.heartbeat_at) FROM wh_service_instances i
$$;
COMMENT ON FUNCTION wh_status IS 'What waits, what is leased, what died';
