-- Forgets results of commands past their retention; a repeat after that is a new execution.
-- Called by perform_maintenance. Index: wh_command_results_created.
CREATE OR REPLACE FUNCTION purge_command_results(p_batch int)
RETURNS bigint LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
  WITH gone AS (
    DELETE FROM wh_command_results r USING (
      SELECT o.scope, o.key FROM wh_command_results o
      WHERE o.created_at < clock_timestamp() - make_interval(days => wh_setting_number('command_retention_days', 30))
      ORDER BY o.created_at LIMIT p_batch FOR UPDATE SKIP LOCKED) o
    WHERE r.scope = o.scope AND r.key = o.key RETURNING 1)
  SELECT count(*) FROM gone
$$;
COMMENT ON FUNCTION purge_command_results IS 'Forgets results of commands past their retention';
