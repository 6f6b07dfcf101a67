-- Removes shared payloads that racing completions left behind. Called by perform_maintenance.
-- It starts at a random place and goes round, so that payloads that are still needed do not keep it
-- from those behind them, and no cursor has to be kept. Indexes: wh_inbox_payloads_stored, both primary keys.
CREATE OR REPLACE FUNCTION drop_orphan_payloads(p_batch int)
RETURNS bigint LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
  WITH place AS MATERIALIZED (
    SELECT o.message_id FROM wh_inbox_payloads o
    WHERE o.stored_at >= (SELECT min(f.stored_at) + random() * (max(f.stored_at) - min(f.stored_at)) FROM wh_inbox_payloads f)
      AND o.stored_at < clock_timestamp() - interval '1 minute'
    ORDER BY o.stored_at LIMIT p_batch),
  first AS MATERIALIZED (
    SELECT o.message_id FROM wh_inbox_payloads o WHERE o.stored_at < clock_timestamp() - interval '1 minute'
    ORDER BY o.stored_at LIMIT p_batch),
  gone AS (
    DELETE FROM wh_inbox_payloads p USING (SELECT * FROM place UNION SELECT * FROM first) o
    WHERE p.message_id = o.message_id AND NOT EXISTS (SELECT FROM wh_inbox i WHERE i.message_id = p.message_id)
    RETURNING 1)
  SELECT count(*) FROM gone
$$;
COMMENT ON FUNCTION drop_orphan_payloads IS 'Removes shared payloads that nothing needs';
