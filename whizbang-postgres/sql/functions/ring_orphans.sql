-- Safety net: a quiet row without a gate would wait for ever. The protocol makes none, so this
-- reports 0; it looks once an hour, since it must walk over all quiet rows.
-- Called by perform_maintenance. Indexes: wh_inbox_stream, wh_inbox_streams_pkey.
CREATE OR REPLACE FUNCTION ring_orphans(p_batch int)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
  v_found bigint;
BEGIN
  INSERT INTO wh_settings AS s (setting_key, setting_value, value_type, description)
  VALUES ('orphans_checked_at', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
          'timestamp', 'When quiet rows were last checked for missing gates')
  ON CONFLICT (setting_key) DO UPDATE SET setting_value = EXCLUDED.setting_value, updated_at = clock_timestamp()
  WHERE s.updated_at < clock_timestamp() - interval '1 hour';
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  UPDATE wh_inbox i SET due_at = clock_timestamp() FROM (
    SELECT o.message_id, o.handler_name FROM wh_inbox o
    WHERE o.stream_id IS NOT NULL AND o.due_at IS NULL AND NOT EXISTS (
      SELECT FROM wh_inbox_streams g WHERE g.lane = o.lane AND g.stream_id = o.stream_id)
    LIMIT p_batch FOR UPDATE SKIP LOCKED) o
  WHERE i.message_id = o.message_id AND i.handler_name = o.handler_name
    AND NOT EXISTS (SELECT FROM wh_inbox_streams g WHERE g.lane = i.lane AND g.stream_id = i.stream_id);
  GET DIAGNOSTICS v_found = ROW_COUNT;
  RETURN v_found;
END $$;
COMMENT ON FUNCTION ring_orphans IS 'Wakes quiet rows without a gate; must find none';
