-- Drops instances that have been silent for a day: those whose peers never saw them die.
-- Called by perform_maintenance. Index: wh_service_instances_heartbeat.
CREATE OR REPLACE FUNCTION forget_dead_instances()
RETURNS bigint LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
  WITH gone AS (
    DELETE FROM wh_service_instances WHERE heartbeat_at < clock_timestamp() - interval '1 day' RETURNING 1)
  SELECT count(*) FROM gone
$$;
COMMENT ON FUNCTION forget_dead_instances IS 'Drops instances that have been silent for a day';
