-- Deletes ids from before the horizon, except those whose message waits in the inbox or is dead.
-- Called by perform_maintenance. A cursor in wh_settings moves over the pinned ids, so that a run does
-- not look at them again until it has come round. Index: idx_message_dedup_first_seen.
CREATE OR REPLACE FUNCTION purge_deduplication(p_batch int)
RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
  v_horizon timestamptz := advance_dedup_horizon();
  v_from timestamptz := '-infinity';
  v_to timestamptz;
  v_seen bigint;
  v_purged bigint;
BEGIN
  BEGIN
    SELECT s.setting_value::timestamptz INTO v_from FROM wh_settings s
    WHERE s.setting_key = 'dedup_purge_cursor' AND s.setting_value ~ '^\d{4}-\d\d-\d\dT[0-9:.]+Z$';
  EXCEPTION WHEN data_exception THEN
    v_from := NULL; -- Somebody wrote into it: from the start.
  END;
  v_from := coalesce(v_from, '-infinity');
  SELECT count(*), max(d.first_seen_at) INTO v_seen, v_to FROM (
    SELECT d.first_seen_at FROM wh_message_deduplication d
    WHERE d.first_seen_at >= v_from AND d.first_seen_at < v_horizon
    ORDER BY d.first_seen_at LIMIT p_batch) d;
  WITH gone AS (
    DELETE FROM wh_message_deduplication d USING (
      SELECT o.message_id FROM wh_message_deduplication o
      WHERE o.first_seen_at >= v_from AND o.first_seen_at <= v_to AND o.first_seen_at < v_horizon
        AND NOT EXISTS (SELECT FROM wh_inbox i WHERE i.message_id = o.message_id)
        AND NOT EXISTS (SELECT FROM wh_dead_letters l WHERE l.message_id = o.message_id)
        -- A version 7 id from a fast clock would not look too old when it comes again: it is kept until
        -- its own time is behind the horizon, for a year at most.
        AND (substr(o.message_id::text, 15, 1) <> '7' OR to_timestamp(
               ('x' || replace(left(o.message_id::text, 13), '-', ''))::bit(48)::bigint / 1000.0)
             NOT BETWEEN v_horizon AND o.first_seen_at + interval '1 year')
      ORDER BY o.message_id FOR UPDATE SKIP LOCKED) o
    WHERE d.message_id = o.message_id RETURNING 1)
  SELECT count(*) INTO v_purged FROM gone;
  INSERT INTO wh_settings (setting_key, setting_value, value_type, description)
  VALUES ('dedup_purge_cursor',
          CASE WHEN v_seen < p_batch THEN '' ELSE to_char((v_to + CASE WHEN v_to = v_from THEN interval '1 microsecond'
            ELSE interval '0' END) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END,
          'timestamp', 'Where the purge of deduplication entries goes on')
  ON CONFLICT (setting_key) DO UPDATE SET setting_value = EXCLUDED.setting_value, updated_at = clock_timestamp();
  RETURN v_purged;
END $$;
COMMENT ON FUNCTION purge_deduplication IS 'Deletes deduplication entries from before the horizon';
