-- Removes shared payloads that racing completions left behind. Called by perform_maintenance.
-- Index: wh_inbox_payloads_stored.
CREATE OR REPLACE FUNCTION drop_orphan_payloads(p_batch int)
RETURNS bigint LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
  WITH gone AS (
    DELETE FROM wh_inbox_payloads p USING (
      SELECT o.message_id FROM (
        SELECT o.message_id FROM wh_inbox_payloads o WHERE o.stored_at < clock_timestamp() - interval '1 minute'
        ORDER BY o.stored_at LIMIT p_batch) o
      WHERE NOT EXISTS (SELECT FROM wh_inbox i WHERE i.message_id = o.message_id)) o
    WHERE p.message_id = o.message_id RETURNING 1)
  SELECT count(*) FROM gone
$$;
COMMENT ON FUNCTION drop_orphan_payloads IS 'Removes shared payloads that nothing needs';
