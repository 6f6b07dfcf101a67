-- Completes rows of handlers without transaction, many at a time; streams stay with the caller.
-- Called by the completer. Locks: gates in (lane, stream) order, then rows in key order.
-- Indexes: wh_inbox_pkey, wh_inbox_streams_pkey.
CREATE OR REPLACE FUNCTION complete_inbox_messages(
  p_message_ids uuid[], p_handler_names text[], p_lanes text[], p_stream_ids uuid[], p_tokens uuid[])
RETURNS TABLE (message_id uuid, handler_name text, completed boolean)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_ids uuid[]; v_handlers text[]; v_shared uuid[];
BEGIN
  WITH input AS MATERIALIZED (
    SELECT i.* FROM unnest(p_message_ids, p_handler_names, p_lanes, p_stream_ids, p_tokens)
      i(id, handler, lane, stream, token)),
  gate AS MATERIALIZED (
    SELECT g.* FROM (SELECT DISTINCT i.lane, i.stream, i.token FROM input i WHERE i.stream IS NOT NULL
                     ORDER BY i.lane, i.stream) k
    CROSS JOIN LATERAL (
      SELECT g.lane, g.stream_id, g.lease_token FROM wh_inbox_streams g
      WHERE g.lane = k.lane AND g.stream_id = k.stream AND g.lease_token = k.token FOR NO KEY UPDATE OF g) g),
  row AS MATERIALIZED (
    SELECT r.* FROM (SELECT * FROM input i ORDER BY i.id, i.handler) i CROSS JOIN LATERAL (
      SELECT w.message_id, w.handler_name FROM wh_inbox w
      WHERE w.message_id = i.id AND w.handler_name = i.handler
        AND CASE WHEN i.stream IS NULL THEN w.lease_token = i.token
                 ELSE (i.lane, i.stream, i.token) IN (SELECT g.lane, g.stream_id, g.lease_token FROM gate g) END
      FOR UPDATE OF w) r),
  gone AS (
    DELETE FROM wh_inbox w USING row r WHERE w.message_id = r.message_id AND w.handler_name = r.handler_name
    RETURNING w.message_id, w.handler_name, w.event_data IS NULL AS shared)
  SELECT array_agg(g.message_id), array_agg(g.handler_name), array_agg(g.message_id) FILTER (WHERE g.shared)
  INTO v_ids, v_handlers, v_shared FROM gone g;
  IF v_shared IS NOT NULL THEN
    PERFORM drop_unused_payloads(v_shared);
  END IF;
  RETURN QUERY
  SELECT i.id, i.handler, (i.id, i.handler) IN (SELECT g.id, g.handler FROM unnest(v_ids, v_handlers) g(id, handler))
  FROM unnest(p_message_ids, p_handler_names) i(id, handler);
END $$;
COMMENT ON FUNCTION complete_inbox_messages IS 'Completes messages of handlers without transaction';
