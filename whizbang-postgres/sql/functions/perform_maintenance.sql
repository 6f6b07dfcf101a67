-- One bounded round of housekeeping; a row for each task with what it did.
-- Safe beside stores: a purge commits its horizon together with its deletions, and a store reads the
-- horizon in a statement after it has inserted its ids, so an id that looks new because it was purged
-- is always found to be older than the horizon. Called by the maintainer, and by operators in psql.
CREATE OR REPLACE FUNCTION perform_maintenance(p_batch int DEFAULT 10000)
RETURNS TABLE (task text, affected bigint) LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
  RETURN QUERY SELECT 'purge_deduplication', purge_deduplication(p_batch);
  RETURN QUERY SELECT 'purge_command_results', purge_command_results(p_batch);
  RETURN QUERY SELECT 'retire_handlers', retire_handlers(p_batch);
  RETURN QUERY SELECT 'drop_orphan_payloads', drop_orphan_payloads(p_batch);
  RETURN QUERY SELECT 'ring_orphans', ring_orphans(p_batch);
  RETURN QUERY SELECT 'forget_dead_instances', forget_dead_instances();
  RETURN QUERY SELECT 'setting_ignored:' || s.setting_key, 1::bigint FROM wh_settings s
    WHERE s.setting_key IN ('dedup_retention_days', 'command_retention_days', 'subscription_retention_hours')
      AND (s.setting_value !~ '^[0-9]{1,5}$' OR s.setting_value ~ '^0+$');
END $$;
COMMENT ON FUNCTION perform_maintenance IS 'One bounded round of housekeeping';
