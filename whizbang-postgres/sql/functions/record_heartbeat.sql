-- Says that an instance lives and releases what dead peers held. known = false: the others took this
-- instance for dead, it must register again.
-- Locks: its own row, then rows of dead peers, SKIP LOCKED: concurrent heartbeats share the reaping.
-- Index: wh_service_instances_heartbeat.
CREATE OR REPLACE FUNCTION record_heartbeat(
  p_instance_id uuid, p_dead_after interval, p_lease interval, p_handlers text[], p_types text[], p_lanes text[])
RETURNS TABLE (known boolean, dead_peers int, released bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
  v_dead uuid[];
BEGIN
  UPDATE wh_service_instances i SET heartbeat_at = clock_timestamp() WHERE i.instance_id = p_instance_id;
  known := FOUND;
  PERFORM touch_subscriptions(p_handlers, p_types, p_lanes, false);
  SELECT array_agg(d.instance_id) INTO v_dead FROM (
    SELECT i.instance_id FROM wh_service_instances i
    WHERE i.heartbeat_at < clock_timestamp() - p_dead_after AND i.instance_id <> p_instance_id
    ORDER BY i.instance_id FOR UPDATE SKIP LOCKED) d;
  dead_peers := coalesce(cardinality(v_dead), 0);
  released := 0;
  IF dead_peers > 0 THEN
    released := release_leases(v_dead, NULL, p_lease, true);
    -- A call that released nothing has found everything: only then is the instance forgotten.
    IF released = 0 THEN
      DELETE FROM wh_service_instances i WHERE i.instance_id = ANY (v_dead);
    END IF;
  END IF;
  RETURN NEXT;
END $$;
COMMENT ON FUNCTION record_heartbeat IS 'Says that an instance lives and releases what dead peers held';
