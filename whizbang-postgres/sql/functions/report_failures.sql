-- Reports leased rows that did not complete. Fenced: a row or gate that is no longer leased under
-- the token is left alone ('lost').
-- Actions: 'retry' counts an attempt and is due after the delay; 'snooze' is due after the delay;
-- 'release' is due now; 'dead' counts an attempt and moves the row to the dead letters. Of a stream,
-- the gate carries lease and due time; on 'dead' the stream goes on, or stops if it is parked.
-- Locks: gates in (lane, stream) order, then rows in key order, then payloads.
-- Indexes: wh_inbox_pkey, wh_inbox_streams_pkey.
CREATE OR REPLACE FUNCTION report_failures(
  p_message_ids uuid[], p_handler_names text[], p_lanes text[], p_stream_ids uuid[], p_tokens uuid[],
  p_actions text[], p_delays interval[], p_reasons text[], p_errors text[], p_parks boolean[])
RETURNS TABLE (message_id uuid, handler_name text, outcome text)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_held int[];
BEGIN
  -- 1. Which reports still hold their lease.
  WITH input AS MATERIALIZED (
    SELECT i.* FROM unnest(p_message_ids, p_handler_names, p_lanes, p_stream_ids, p_tokens) WITH ORDINALITY
      i(id, handler, lane, stream, token, ord)),
  gate AS MATERIALIZED (
    SELECT g.* FROM (SELECT DISTINCT i.lane, i.stream, i.token FROM input i WHERE i.stream IS NOT NULL
                     ORDER BY i.lane, i.stream) k
    CROSS JOIN LATERAL (
      SELECT g.lane, g.stream_id, g.lease_token FROM wh_inbox_streams g
      WHERE g.lane = k.lane AND g.stream_id = k.stream AND g.lease_token = k.token FOR NO KEY UPDATE OF g) g),
  row AS MATERIALIZED (
    SELECT r.ord FROM (SELECT * FROM input i ORDER BY i.id, i.handler) i CROSS JOIN LATERAL (
      SELECT i.ord FROM wh_inbox w
      WHERE w.message_id = i.id AND w.handler_name = i.handler
        AND CASE WHEN i.stream IS NULL THEN w.lease_token = i.token
                 ELSE (i.lane, i.stream, i.token) IN (SELECT g.lane, g.stream_id, g.lease_token FROM gate g) END
      FOR UPDATE OF w) r)
  SELECT array_agg(r.ord::int) INTO v_held FROM row r;

  -- 2. The rows.
  WITH input AS MATERIALIZED (
    SELECT i.* FROM unnest(p_message_ids, p_handler_names, p_stream_ids, p_actions, p_delays, p_errors)
      WITH ORDINALITY i(id, handler, stream, action, delay, error, ord)
    WHERE i.ord = ANY (v_held) AND i.action <> 'dead')
  UPDATE wh_inbox w SET
    attempts = w.attempts + (i.action = 'retry')::int,
    losses = CASE WHEN i.action = 'release' THEN w.losses ELSE 0 END,
    started_at = NULL,
    error = coalesce(i.error, w.error),
    due_at = CASE WHEN i.stream IS NOT NULL THEN w.due_at
                  WHEN i.action = 'release' THEN clock_timestamp() ELSE clock_timestamp() + i.delay END,
    lease_token = NULL, instance_id = NULL
  FROM input i WHERE w.message_id = i.id AND w.handler_name = i.handler;

  -- 3. The dead.
  WITH input AS MATERIALIZED (
    SELECT i.* FROM unnest(p_message_ids, p_handler_names, p_stream_ids, p_actions, p_reasons, p_errors, p_parks)
      WITH ORDINALITY i(id, handler, stream, action, reason, error, park, ord)
    WHERE i.ord = ANY (v_held) AND i.action = 'dead'),
  gone AS (
    DELETE FROM wh_inbox w USING input i WHERE w.message_id = i.id AND w.handler_name = i.handler
    RETURNING w.*, i.reason, i.error AS last_error, i.park AND i.stream IS NOT NULL AS parked)
  INSERT INTO wh_dead_letters (source, message_id, handler_name, message_type, is_command, event_data, metadata,
    lane, stream_id, sequence, correlation_id, causation_id, attempts, losses, reason, error, parked, received_at)
  SELECT 'inbox', g.message_id, g.handler_name, g.message_type, g.is_command,
    coalesce(g.event_data, p.event_data), coalesce(g.metadata, p.metadata), g.lane, g.stream_id, g.sequence,
    g.correlation_id, g.causation_id, g.attempts + (g.reason <> 'crashed')::int, g.losses, coalesce(g.reason, 'failed'),
    coalesce(g.last_error, g.error), coalesce(g.parked, false), g.received_at
  FROM gone g LEFT JOIN wh_inbox_payloads p ON p.message_id = g.message_id AND g.event_data IS NULL;
  IF 'dead' = ANY (p_actions) THEN
    PERFORM drop_unused_payloads(p_message_ids);
  END IF;

  -- 4. The gates: the first report of each stream decides. A gate that is held although the row is gone
  -- (its completion was committed, and the answer lost) is given back as well.
  WITH input AS MATERIALIZED (
    SELECT DISTINCT ON (i.lane, i.stream) i.*
    FROM (SELECT u.*, coalesce(u.ord = ANY (v_held), false) AS held
          FROM unnest(p_lanes, p_stream_ids, p_tokens, p_actions, p_delays, p_parks)
            WITH ORDINALITY u(lane, stream, token, action, delay, park, ord)) i
    WHERE i.stream IS NOT NULL ORDER BY i.lane, i.stream, i.held DESC, i.ord)
  UPDATE wh_inbox_streams g SET
    due_at = CASE WHEN NOT i.held THEN clock_timestamp()
                  WHEN i.action IN ('retry', 'snooze') THEN clock_timestamp() + i.delay
                  WHEN i.action = 'dead' AND i.park THEN 'infinity' ELSE clock_timestamp() END,
    lease_token = NULL, instance_id = NULL, handler_name = NULL
  FROM input i WHERE g.lane = i.lane AND g.stream_id = i.stream AND g.lease_token = i.token;

  RETURN QUERY
  SELECT i.id, i.handler, CASE WHEN i.ord = ANY (v_held) THEN i.action ELSE 'lost' END
  FROM unnest(p_message_ids, p_handler_names, p_actions) WITH ORDINALITY i(id, handler, action, ord);
END $$;
COMMENT ON FUNCTION report_failures IS 'Reports leased rows that did not complete';
