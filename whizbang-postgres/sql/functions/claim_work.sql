-- Leases due work of the handlers that the caller has room for: at most p_limit rows in all, and of a
-- handler at most its room.
-- Called by the worker for backlog, retries and recovery; what is handed over never passes here.
-- p_handlers, p_limits, p_lanes and p_after are parallel: handler, room, its lane, and the due time
-- from which to look (the caller's low watermark: index entries of deleted rows below it are not
-- walked over again until vacuum removes them). Lanes that a handler was in before are looked at too.
-- Locks, in this order: ringing rows FOR UPDATE and gates of theirs FOR KEY SHARE, SKIP LOCKED; keys
-- of gates that it opens, ascending; due gates FOR NO KEY UPDATE SKIP LOCKED. So claims wait neither
-- for each other nor for a handler's transaction, and nothing is waited for while a gate is leased.
-- Needs READ COMMITTED. Commits without waiting for the disk: a lease that a crash of the server forgets
-- fences its holder off, and the row is claimed again.
-- Indexes: wh_inbox_streams_due, wh_inbox_due, wh_inbox_stream, primary keys.
CREATE OR REPLACE FUNCTION claim_work(
  p_handlers text[], p_limits int[], p_lanes text[], p_limit int, p_run int, p_lease interval, p_token uuid,
  p_instance_id uuid, p_after timestamptz[])
RETURNS TABLE (message_id uuid, handler_name text, message_type text, event_data text, metadata text, lane text,
               stream_id uuid, sequence bigint, correlation_id uuid, causation_id uuid, attempts int, losses int,
               received_at timestamptz, was_due_at timestamptz)
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_now timestamptz := clock_timestamp();
  -- Handler and lane, for each lane a handler's rows can be in; where to look from.
  v_pairs text[]; v_pair_lanes text[]; v_pair_after timestamptz[];
  -- Lanes that also have handlers which the caller has not, or has no room for.
  v_shared text[];
  v_gates boolean;
  -- Gates out of the caller's reach that one call marks.
  c_marks constant int := 5000;
  v_ids uuid[]; v_owners text[]; v_dues timestamptz[];
  v_lanes text[]; v_streams uuid[]; v_abandoned boolean[]; v_gate_dues timestamptz[];
  v_run_ids uuid[]; v_run_owners text[]; v_run_dues timestamptz[];
  v_idle_lanes text[]; v_idle_streams uuid[];
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'work must be claimed at isolation level read committed'
      USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
  SELECT array_agg(w.handler), array_agg(l.lane), array_agg(coalesce(w.after, '-infinity'))
  INTO v_pairs, v_pair_lanes, v_pair_after
  FROM unnest(p_handlers, p_lanes, p_after) w(handler, lane, after) CROSS JOIN LATERAL (
    SELECT w.lane UNION SELECT f.lane FROM wh_subscriptions s, unnest(s.former_lanes) f(lane)
    WHERE s.handler_name = w.handler) l(lane);
  SELECT array_agg(DISTINCT l.lane) INTO v_shared
  FROM wh_subscriptions s, unnest(s.lane || s.former_lanes) l(lane)
  WHERE s.handler_name <> ALL (p_handlers) AND l.lane = ANY (v_pair_lanes);
  SELECT EXISTS (
    SELECT FROM unnest(v_pair_lanes, v_pair_after) k(lane, after) CROSS JOIN LATERAL (
      SELECT FROM wh_inbox_streams g
      WHERE g.lane = k.lane AND g.handler_name IS NULL AND g.due_at >= k.after AND g.due_at <= v_now LIMIT 1) g)
  INTO v_gates;

  -- 1. Rows that ring. Unordered ones are leased. A stream's row rings only if its gate was being closed
  -- when it was stored: it opens the gate anew, or falls quiet under one that stands. While streams
  -- wait as well, either kind gets half of the room, in turns where the room is one.
  WITH want AS MATERIALIZED (
    SELECT w.handler, coalesce(w.after, '-infinity') AS after,
      CASE WHEN v_gates THEN floor(w.rows / 2.0 + random())::int ELSE w.rows END AS rows
    FROM unnest(p_handlers, p_limits, p_after) w(handler, rows, after) ORDER BY random()),
  ringing AS MATERIALIZED (
    SELECT r.* FROM want w CROSS JOIN LATERAL (
      SELECT i.message_id, i.handler_name, i.lane, i.stream_id, i.due_at, i.lease_token IS NOT NULL AS abandoned
      FROM wh_inbox i WHERE i.handler_name = w.handler AND i.due_at >= w.after AND i.due_at <= v_now
      ORDER BY i.due_at LIMIT greatest(w.rows, 0) FOR UPDATE SKIP LOCKED) r
    LIMIT CASE WHEN v_gates THEN floor(p_limit / 2.0 + random())::int ELSE p_limit END),
  stream AS MATERIALIZED (SELECT DISTINCT r.lane, r.stream_id FROM ringing r WHERE r.stream_id IS NOT NULL),
  held AS MATERIALIZED (
    SELECT g.lane, g.stream_id FROM stream k CROSS JOIN LATERAL (
      SELECT g.lane, g.stream_id FROM wh_inbox_streams g WHERE g.lane = k.lane AND g.stream_id = k.stream_id
      FOR KEY SHARE OF g SKIP LOCKED) g),
  opened AS (
    INSERT INTO wh_inbox_streams AS g (lane, stream_id, due_at)
    SELECT k.lane, k.stream_id, v_now FROM stream k
    WHERE NOT EXISTS (SELECT FROM wh_inbox_streams g WHERE g.lane = k.lane AND g.stream_id = k.stream_id)
    ORDER BY k.lane, k.stream_id
    ON CONFLICT ON CONSTRAINT wh_inbox_streams_pkey DO NOTHING
    RETURNING g.lane, g.stream_id),
  answered AS MATERIALIZED (SELECT h.* FROM held h UNION ALL SELECT o.* FROM opened o),
  touched AS (
    UPDATE wh_inbox i SET
      due_at = CASE WHEN r.stream_id IS NULL THEN clock_timestamp() + p_lease
                    WHEN (r.lane, r.stream_id) IN (SELECT a.lane, a.stream_id FROM answered a) THEN NULL
                    ELSE v_now + interval '1 second' END,
      lease_token = CASE WHEN r.stream_id IS NULL THEN p_token END,
      instance_id = CASE WHEN r.stream_id IS NULL THEN p_instance_id END,
      losses = i.losses + r.abandoned::int,
      attempts = i.attempts + (r.abandoned AND i.started_at IS NOT NULL)::int,
      started_at = NULL
    FROM ringing r WHERE i.message_id = r.message_id AND i.handler_name = r.handler_name
    RETURNING i.message_id, i.handler_name, i.stream_id, r.due_at)
  SELECT array_agg(t.message_id), array_agg(t.handler_name), array_agg(t.due_at)
  INTO v_ids, v_owners, v_dues FROM touched t WHERE t.stream_id IS NULL;

  -- 2. In shared lanes, gates whose first row is of a handler out of the caller's reach are marked with
  -- it: they stay due, only those who have the handler find them, and nobody else looks again.
  IF v_shared IS NOT NULL THEN
    WITH foreign_heads AS MATERIALIZED (
      SELECT g.* FROM unnest(v_shared) l(lane) CROSS JOIN LATERAL (
        SELECT g.lane, g.stream_id, f.handler_name FROM wh_inbox_streams g CROSS JOIN LATERAL (
          SELECT w.handler_name FROM wh_inbox w WHERE w.lane = g.lane AND w.stream_id = g.stream_id
          ORDER BY w.sequence LIMIT 1) f
        WHERE g.lane = l.lane AND g.handler_name IS NULL AND g.due_at <= v_now
          AND f.handler_name <> ALL (p_handlers)
        ORDER BY g.handler_name, g.due_at LIMIT c_marks FOR NO KEY UPDATE OF g SKIP LOCKED) g)
    UPDATE wh_inbox_streams g SET handler_name = f.handler_name FROM foreign_heads f
    WHERE g.lane = f.lane AND g.stream_id = f.stream_id;
  END IF;

  -- 3. Gates that are due: opened a moment ago, a retry, a stream given back, a lease that ran out.
  -- First rows are looked up again below, under the lock.
  WITH room AS MATERIALIZED (
    SELECT w.handler, w.rows - (SELECT count(*) FROM unnest(v_owners) o(name) WHERE o.name = w.handler)::int AS rows
    FROM unnest(p_handlers, p_limits) w(handler, rows)),
  pair AS MATERIALIZED (
    SELECT k.handler, k.lane, k.after, r.rows
    FROM unnest(v_pairs, v_pair_lanes, v_pair_after) k(handler, lane, after) JOIN room r ON r.handler = k.handler
    WHERE r.rows > 0),
  due AS MATERIALIZED (
    SELECT g.* FROM (
      SELECT p.lane, min(p.after) AS after, sum(p.rows)::int AS rows FROM pair p GROUP BY p.lane ORDER BY random()) l
    CROSS JOIN LATERAL (
      SELECT g.lane, g.stream_id, g.lease_token IS NOT NULL AS abandoned, g.due_at FROM wh_inbox_streams g
      WHERE g.lane = l.lane AND g.handler_name IS NULL AND g.due_at >= l.after AND g.due_at <= v_now
        AND ((l.lane = ANY (v_shared)) IS NOT TRUE OR coalesce((
          SELECT f.handler_name FROM wh_inbox f WHERE f.lane = g.lane AND f.stream_id = g.stream_id
          ORDER BY f.sequence LIMIT 1) = ANY (p_handlers), true))
      -- By handler first, although it is null here: the planner knows the order of the index only so,
      -- and would otherwise read and sort every due gate.
      ORDER BY g.handler_name, g.due_at LIMIT l.rows FOR NO KEY UPDATE OF g SKIP LOCKED) g
    LIMIT greatest(p_limit - coalesce(cardinality(v_ids), 0), 0)),
  marked AS MATERIALIZED (
    SELECT g.* FROM pair p CROSS JOIN LATERAL (
      SELECT g.lane, g.stream_id, g.lease_token IS NOT NULL AS abandoned, g.due_at FROM wh_inbox_streams g
      WHERE g.lane = p.lane AND g.handler_name = p.handler AND g.due_at <= v_now
      ORDER BY g.due_at LIMIT p.rows FOR NO KEY UPDATE OF g SKIP LOCKED) g
    LIMIT greatest(p_limit - coalesce(cardinality(v_ids), 0), 0)),
  head AS MATERIALIZED (
    SELECT d.*, f.handler_name, row_number() OVER (ORDER BY d.due_at) AS place,
      row_number() OVER (PARTITION BY f.handler_name ORDER BY d.due_at) AS place_of_handler
    FROM (SELECT d.* FROM due d UNION ALL SELECT m.* FROM marked m) d
    LEFT JOIN LATERAL (
      SELECT w.handler_name FROM wh_inbox w WHERE w.lane = d.lane AND w.stream_id = d.stream_id
      ORDER BY w.sequence LIMIT 1) f ON true),
  leased AS (
    UPDATE wh_inbox_streams g SET due_at = clock_timestamp() + p_lease, lease_token = p_token,
      instance_id = p_instance_id, handler_name = NULL
    FROM head h LEFT JOIN room r ON r.handler = h.handler_name
    WHERE g.lane = h.lane AND g.stream_id = h.stream_id
      -- Says nothing new, but keeps a plan that was made while there were no gates from walking over all
      -- of them, the deleted ones too.
      AND g.lane = ANY (ARRAY(SELECT x.lane FROM head x)) AND g.stream_id = ANY (ARRAY(SELECT x.stream_id FROM head x))
      AND h.place <= p_limit - coalesce(cardinality(v_ids), 0)
      AND (h.handler_name IS NULL OR h.place_of_handler <= r.rows)
    RETURNING g.lane, g.stream_id, h.abandoned, h.due_at),
  -- A mark that is out of date: another row has become the first.
  corrected AS (
    UPDATE wh_inbox_streams g SET handler_name = h.handler_name FROM head h
    WHERE g.lane = h.lane AND g.stream_id = h.stream_id AND h.handler_name <> ALL (p_handlers)
      AND g.lane = ANY (ARRAY(SELECT x.lane FROM head x)) AND g.stream_id = ANY (ARRAY(SELECT x.stream_id FROM head x)))
  SELECT array_agg(l.lane), array_agg(l.stream_id), array_agg(l.abandoned), array_agg(l.due_at)
  INTO v_lanes, v_streams, v_abandoned, v_gate_dues FROM leased l;

  IF v_lanes IS NOT NULL THEN
    -- 4. A lease that ran out is a loss of the stream's head, and an attempt if it ran alone.
    IF true = ANY (v_abandoned) THEN
      UPDATE wh_inbox i SET losses = i.losses + 1, started_at = NULL,
        attempts = i.attempts + (i.started_at IS NOT NULL)::int
      FROM (SELECT f.* FROM unnest(v_lanes, v_streams, v_abandoned) a(lane, stream, abandoned) CROSS JOIN LATERAL (
              SELECT f.message_id, f.handler_name FROM wh_inbox f WHERE f.lane = a.lane AND f.stream_id = a.stream
              ORDER BY f.sequence LIMIT 1) f
            WHERE a.abandoned) f
      WHERE i.message_id = f.message_id AND i.handler_name = f.handler_name;
    END IF;

    -- 5. The rows of each stream up to the first that the caller cannot run; heads first, then as many
    -- of the others as there is room for.
    WITH row AS MATERIALIZED (
      SELECT r.*, k.ord, k.due,
        row_number() OVER (ORDER BY r.place, k.ord) AS nth,
        row_number() OVER (PARTITION BY r.handler_name ORDER BY r.place, k.ord) AS nth_of_handler
      FROM unnest(v_lanes, v_streams, v_gate_dues) WITH ORDINALITY k(lane, stream, due, ord) CROSS JOIN LATERAL (
        SELECT f.message_id, f.handler_name, f.lane, f.stream_id, row_number() OVER before AS place,
          bool_and(f.handler_name = ANY (p_handlers)) OVER before AS ours
        FROM (SELECT f.* FROM wh_inbox f WHERE f.lane = k.lane AND f.stream_id = k.stream
              ORDER BY f.sequence LIMIT greatest(p_run, 1)) f
        WINDOW before AS (ORDER BY f.sequence)) r
      WHERE r.ours),
    kept AS MATERIALIZED (
      SELECT r.*, bool_and(r.place = 1 OR (
          r.nth <= p_limit - coalesce(cardinality(v_ids), 0)
          AND r.nth_of_handler <= w.rows - (SELECT count(*) FROM unnest(v_owners) o(name) WHERE o.name = w.handler)
        )) OVER (PARTITION BY r.ord ORDER BY r.place) AS fits
      FROM row r JOIN unnest(p_handlers, p_limits) w(handler, rows) ON w.handler = r.handler_name)
    SELECT array_agg(k.message_id), array_agg(k.handler_name), array_agg(k.due)
    INTO v_run_ids, v_run_owners, v_run_dues FROM kept k WHERE k.fits;

    -- 6. Streams of which there is nothing to run after all: empty ones go, others are given back.
    SELECT array_agg(k.lane), array_agg(k.stream) INTO v_idle_lanes, v_idle_streams
    FROM unnest(v_lanes, v_streams) k(lane, stream) CROSS JOIN LATERAL (
      SELECT (SELECT f.handler_name FROM wh_inbox f WHERE f.lane = k.lane AND f.stream_id = k.stream
              ORDER BY f.sequence LIMIT 1) AS name OFFSET 0) h
    WHERE (h.name = ANY (p_handlers)) IS NOT TRUE;
    IF v_idle_lanes IS NOT NULL THEN
      PERFORM close_streams(v_idle_lanes, v_idle_streams, array_fill(p_token, ARRAY[cardinality(v_idle_lanes)]));
    END IF;
  END IF;

  RETURN QUERY
  SELECT i.message_id, i.handler_name, i.message_type, coalesce(i.event_data, p.event_data)::text,
    coalesce(i.metadata, p.metadata)::text, i.lane, i.stream_id, i.sequence, i.correlation_id, i.causation_id,
    i.attempts, i.losses, CASE WHEN isfinite(i.received_at) THEN i.received_at END, greatest(k.due, 'epoch') -- drivers know no -infinity
  FROM unnest(v_ids || v_run_ids, v_owners || v_run_owners, v_dues || v_run_dues) k(id, handler, due)
  JOIN wh_inbox i ON i.message_id = k.id AND i.handler_name = k.handler
  LEFT JOIN LATERAL (
    SELECT p.event_data, p.metadata FROM wh_inbox_payloads p
    WHERE i.event_data IS NULL AND p.message_id = i.message_id) p ON true
  ORDER BY i.stream_id, i.sequence;
END $$;
COMMENT ON FUNCTION claim_work IS 'Leases due inbox work';
