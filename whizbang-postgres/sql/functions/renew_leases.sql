-- Makes held leases last longer and returns those that still hold. A row or gate that is locked is
-- being completed right now: it is skipped, and counts as held.
-- Called by the renewer. Indexes: primary keys.
CREATE OR REPLACE FUNCTION renew_leases(
  p_message_ids uuid[], p_handler_names text[], p_tokens uuid[], p_lanes text[], p_stream_ids uuid[],
  p_stream_tokens uuid[], p_lease interval)
RETURNS TABLE (message_id uuid, handler_name text, lane text, stream_id uuid)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
  UPDATE wh_inbox w SET due_at = clock_timestamp() + p_lease
  FROM (SELECT r.* FROM unnest(p_message_ids, p_handler_names, p_tokens) i(id, handler, token) CROSS JOIN LATERAL (
          SELECT w.message_id, w.handler_name FROM wh_inbox w
          WHERE w.message_id = i.id AND w.handler_name = i.handler AND w.lease_token = i.token
          FOR UPDATE OF w SKIP LOCKED) r) r
  WHERE w.message_id = r.message_id AND w.handler_name = r.handler_name;
  UPDATE wh_inbox_streams g SET due_at = clock_timestamp() + p_lease
  FROM (SELECT r.* FROM unnest(p_lanes, p_stream_ids, p_stream_tokens) i(lane, stream, token) CROSS JOIN LATERAL (
          SELECT g.lane, g.stream_id FROM wh_inbox_streams g
          WHERE g.lane = i.lane AND g.stream_id = i.stream AND g.lease_token = i.token
          FOR NO KEY UPDATE OF g SKIP LOCKED) r) r
  WHERE g.lane = r.lane AND g.stream_id = r.stream_id;
  RETURN QUERY
  SELECT w.message_id, w.handler_name, NULL::text, NULL::uuid
  FROM unnest(p_message_ids, p_handler_names, p_tokens) i(id, handler, token)
  JOIN wh_inbox w ON w.message_id = i.id AND w.handler_name = i.handler AND w.lease_token = i.token
  UNION ALL
  SELECT NULL::uuid, NULL::text, g.lane, g.stream_id
  FROM unnest(p_lanes, p_stream_ids, p_stream_tokens) i(lane, stream, token)
  JOIN wh_inbox_streams g ON g.lane = i.lane AND g.stream_id = i.stream AND g.lease_token = i.token;
END $$;
COMMENT ON FUNCTION renew_leases IS 'Renews leases; returns those that still hold';
