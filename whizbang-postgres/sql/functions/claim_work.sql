-- Leases due work of the handlers that the caller has room for.
-- Called by the worker for backlog, retries and recovery; what is handed over never passes here.
-- p_handlers, p_limits, p_lanes and p_after are parallel: handler, room, its lane, and the due time
-- from which to look (the caller's low watermark: index entries of deleted rows below it are not
-- walked over again until vacuum removes them).
-- Locks: gates FOR NO KEY UPDATE, rows FOR UPDATE, gates of ringing rows FOR KEY SHARE; all SKIP LOCKED,
-- so claims never wait for each other or for a handler's transaction. Needs READ COMMITTED.
-- Indexes: wh_inbox_streams_due, wh_inbox_due, wh_inbox_stream, both primary keys.
CREATE OR REPLACE FUNCTION claim_work(
  p_handlers text[], p_limits int[], p_lanes text[], p_limit int, p_run int, p_lease interval, p_token uuid,
  p_instance_id uuid, p_after timestamptz[])
RETURNS TABLE (message_id uuid, handler_name text, message_type text, event_data text, metadata text, lane text,
               stream_id uuid, sequence bigint, correlation_id uuid, causation_id uuid, attempts int, losses int,
               received_at timestamptz, was_due_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp();
  v_lanes text[]; v_streams uuid[]; v_abandoned boolean[]; v_due timestamptz[];
  v_run int;
BEGIN
  -- 1. Gates that are due: a retry, a stream given back, a lease that ran out.
  WITH want AS MATERIALIZED (
    SELECT w.lane, sum(w.rows)::int AS rows, min(coalesce(w.after, '-infinity')) AS after
    FROM unnest(p_lanes, p_limits, p_after) w(lane, rows, after) GROUP BY w.lane),
  due AS MATERIALIZED (
    SELECT g.* FROM want w CROSS JOIN LATERAL (
      SELECT g.lane, g.stream_id, g.lease_token IS NOT NULL AS abandoned, g.due_at FROM wh_inbox_streams g
      WHERE g.lane = w.lane AND g.due_at >= w.after AND g.due_at <= v_now
        AND coalesce((SELECT f.handler_name FROM wh_inbox f WHERE f.lane = g.lane AND f.stream_id = g.stream_id
                      ORDER BY f.sequence LIMIT 1) = ANY (p_handlers), true)
      ORDER BY g.due_at LIMIT least(w.rows, p_limit) FOR NO KEY UPDATE OF g SKIP LOCKED) g
    LIMIT p_limit),
  leased AS (
    UPDATE wh_inbox_streams g SET due_at = v_now + p_lease, lease_token = p_token, instance_id = p_instance_id
    FROM due d WHERE g.lane = d.lane AND g.stream_id = d.stream_id
    RETURNING g.lane, g.stream_id, d.abandoned, d.due_at)
  SELECT array_agg(l.lane), array_agg(l.stream_id), array_agg(l.abandoned), array_agg(l.due_at)
  INTO v_lanes, v_streams, v_abandoned, v_due FROM leased l;

  -- 2. A lease that ran out is a loss of the stream's head, and an attempt if it ran alone.
  IF true = ANY (v_abandoned) THEN
    UPDATE wh_inbox i SET losses = i.losses + 1, started_at = NULL,
      attempts = i.attempts + (i.started_at IS NOT NULL)::int
    FROM unnest(v_lanes, v_streams, v_abandoned) a(lane, stream, abandoned) CROSS JOIN LATERAL (
      SELECT f.message_id, f.handler_name FROM wh_inbox f WHERE f.lane = a.lane AND f.stream_id = a.stream
      ORDER BY f.sequence LIMIT 1) f
    WHERE a.abandoned AND i.message_id = f.message_id AND i.handler_name = f.handler_name;
  END IF;

  -- 3. Rows that ring: unordered ones are leased. A stream's row rings only if its gate was being
  -- closed when it was stored; the head opens the gate anew, the others fall quiet under it.
  v_run := least(p_run, greatest(1, p_limit / greatest(1, coalesce(cardinality(v_lanes), 0))));
  RETURN QUERY
  WITH want AS MATERIALIZED (
    SELECT w.handler, w.rows, coalesce(w.after, '-infinity') AS after
    FROM unnest(p_handlers, p_limits, p_after) w(handler, rows, after)),
  ringing AS MATERIALIZED (
    SELECT r.* FROM want w CROSS JOIN LATERAL (
      SELECT i.message_id, i.handler_name, i.lane, i.stream_id, i.sequence, i.due_at,
        i.lease_token IS NOT NULL AS abandoned
      FROM wh_inbox i WHERE i.handler_name = w.handler AND i.due_at >= w.after AND i.due_at <= v_now
      ORDER BY i.due_at LIMIT least(w.rows, p_limit) FOR UPDATE SKIP LOCKED) r
    LIMIT p_limit),
  stream AS MATERIALIZED (SELECT DISTINCT r.lane, r.stream_id FROM ringing r WHERE r.stream_id IS NOT NULL),
  held AS MATERIALIZED (
    SELECT g.lane, g.stream_id FROM stream k CROSS JOIN LATERAL (
      SELECT g.lane, g.stream_id FROM wh_inbox_streams g WHERE g.lane = k.lane AND g.stream_id = k.stream_id
      FOR KEY SHARE OF g SKIP LOCKED) g),
  opened AS (
    INSERT INTO wh_inbox_streams AS g (lane, stream_id, due_at, lease_token, instance_id)
    SELECT r.lane, r.stream_id, v_now + p_lease, p_token, p_instance_id
    FROM ringing r CROSS JOIN LATERAL (
      SELECT f.sequence FROM wh_inbox f WHERE f.lane = r.lane AND f.stream_id = r.stream_id
      ORDER BY f.sequence LIMIT 1) f
    WHERE r.stream_id IS NOT NULL AND f.sequence = r.sequence
      AND NOT EXISTS (SELECT FROM wh_inbox_streams g WHERE g.lane = r.lane AND g.stream_id = r.stream_id)
    ORDER BY r.lane, r.stream_id
    ON CONFLICT ON CONSTRAINT wh_inbox_streams_pkey DO NOTHING
    RETURNING g.lane, g.stream_id),
  answered AS MATERIALIZED (SELECT h.* FROM held h UNION ALL SELECT o.* FROM opened o),
  touched AS (
    UPDATE wh_inbox i SET
      due_at = CASE WHEN r.stream_id IS NULL THEN v_now + p_lease
                    WHEN (r.lane, r.stream_id) IN (SELECT a.lane, a.stream_id FROM answered a) THEN NULL
                    ELSE v_now + interval '1 second' END,
      lease_token = CASE WHEN r.stream_id IS NULL THEN p_token END,
      instance_id = CASE WHEN r.stream_id IS NULL THEN p_instance_id END,
      losses = i.losses + r.abandoned::int,
      attempts = i.attempts + (r.abandoned AND i.started_at IS NOT NULL)::int,
      started_at = NULL
    FROM ringing r WHERE i.message_id = r.message_id AND i.handler_name = r.handler_name
    RETURNING i.*, r.due_at AS was_due_at),
  mine AS (
    SELECT o.lane, o.stream_id, v_now AS due FROM opened o
    UNION ALL SELECT u.lane, u.stream, u.due FROM unnest(v_lanes, v_streams, v_due) u(lane, stream, due)),
  rows AS (
    SELECT t.message_id, t.handler_name, t.message_type, t.event_data, t.metadata, t.lane, t.stream_id, t.sequence,
      t.correlation_id, t.causation_id, t.attempts, t.losses, t.received_at, t.was_due_at
    FROM touched t WHERE t.stream_id IS NULL
    UNION ALL
    SELECT r.message_id, r.handler_name, r.message_type, r.event_data, r.metadata, r.lane, r.stream_id, r.sequence,
      r.correlation_id, r.causation_id, r.attempts, r.losses, r.received_at, m.due
    FROM mine m CROSS JOIN LATERAL (
      SELECT f.*, bool_and(f.handler_name = ANY (p_handlers)) OVER (ORDER BY f.sequence) AS ours
      FROM (SELECT f.* FROM wh_inbox f WHERE f.lane = m.lane AND f.stream_id = m.stream_id
            ORDER BY f.sequence LIMIT v_run) f) r
    WHERE r.ours)
  SELECT r.message_id, r.handler_name, r.message_type, coalesce(r.event_data, p.event_data)::text,
    coalesce(r.metadata, p.metadata)::text, r.lane, r.stream_id, r.sequence, r.correlation_id, r.causation_id,
    r.attempts, r.losses, r.received_at, r.was_due_at
  FROM rows r LEFT JOIN LATERAL (
    SELECT p.event_data, p.metadata FROM wh_inbox_payloads p
    WHERE r.event_data IS NULL AND p.message_id = r.message_id) p ON true
  ORDER BY r.stream_id, r.sequence;

  -- 4. A gate with nothing behind it is closed.
  IF v_lanes IS NOT NULL THEN
    PERFORM close_empty_streams(v_lanes, v_streams, p_token);
  END IF;
END $$;
COMMENT ON FUNCTION claim_work IS 'Leases due inbox work';
