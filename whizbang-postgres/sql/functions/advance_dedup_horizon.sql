-- Moves the horizon to the start of the retention window; it never moves back. Called by the
-- maintainer in a transaction of its own before it purges, and by perform_maintenance.
-- Locks the settings row.
CREATE OR REPLACE FUNCTION advance_dedup_horizon()
RETURNS timestamptz LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
  v_before timestamptz := dedup_horizon();
  v_damaged text;
  v_after timestamptz := clock_timestamp() - make_interval(days => wh_setting_number('dedup_retention_days', 30));
BEGIN
  -- A damaged value reads as the start of the window, so it is overwritten here.
  IF v_before >= v_after THEN
    RETURN v_before;
  END IF;
  -- What is not in our own form cannot be compared as text: it goes, unless somebody was faster.
  SELECT s.setting_value INTO v_damaged FROM wh_settings s
  WHERE s.setting_key = 'dedup_purged_before'
    AND s.setting_value IS DISTINCT FROM to_char(v_before AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
  INSERT INTO wh_settings AS s (setting_key, setting_value, value_type, description)
  VALUES ('dedup_purged_before', to_char(v_after AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'timestamp',
          'Ids born before this time may have been purged; never moves back')
  ON CONFLICT (setting_key) DO UPDATE SET setting_value = EXCLUDED.setting_value, updated_at = clock_timestamp()
  WHERE s.setting_value < EXCLUDED.setting_value OR s.setting_value = v_damaged;
  RETURN v_after;
END $$;
COMMENT ON FUNCTION advance_dedup_horizon IS 'Moves the deduplication horizon to the start of the retention window';
