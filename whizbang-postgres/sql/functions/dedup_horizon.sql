-- The time before which deduplication entries may have been purged; null if nothing ever was.
-- Called by store_inbox_messages in a statement of its own, after the ids are inserted: a purge
-- commits its horizon together with its deletes, so whoever finds an id free because it was purged
-- sees the horizon that purged it. Takes no locks.
CREATE OR REPLACE FUNCTION dedup_horizon()
RETURNS timestamptz LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
  v_value text;
BEGIN
  SELECT s.setting_value INTO v_value FROM wh_settings s WHERE s.setting_key = 'dedup_purged_before';
  IF v_value IS NULL THEN
    RETURN NULL;
  END IF;
  BEGIN
    IF v_value ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$' THEN
      RETURN v_value::timestamptz;
    END IF;
  EXCEPTION WHEN data_exception THEN
    NULL; -- Such as the 31st of November.
  END;
  -- Somebody overwrote it. Without a horizon a purged id would pass for new, so take the latest
  -- time that the purge can have used.
  RAISE WARNING 'wh_settings.dedup_purged_before = % is no time; the retention is used instead', quote_literal(v_value);
  RETURN clock_timestamp() - make_interval(days => wh_setting_number('dedup_retention_days', 30));
END $$;
COMMENT ON FUNCTION dedup_horizon IS 'Ids born before this time may be unknown because they were purged';
