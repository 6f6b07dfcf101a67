-- Stores what is new, one row for each subscribed handler; says for every id what became of it.
-- Called by the consumer and by deliver_outbox_locally, as the only statement that touches gates in
-- its transaction. Needs READ COMMITTED.
-- Locks: dedup rows in id order, then gates in (lane, stream) order; never the other way round, so
-- concurrent batches in opposite orders wait for each other but do not deadlock.
-- A row of a stream is quiet (due_at null) only if its gate was locked FOR KEY SHARE, or made, in this
-- transaction; whoever deletes a gate locks it FOR UPDATE first and then looks for rows in a new
-- statement. A row whose gate could not be locked rings instead, and a claim puts it under a gate.
-- Indexes: wh_message_deduplication_pkey, wh_subscriptions_type, wh_inbox_streams_pkey, wh_inbox_stream.
CREATE OR REPLACE FUNCTION store_inbox_messages(
  p_message_ids uuid[], p_message_types text[], p_commands boolean[], p_event_data text[], p_metadata text[],
  p_stream_ids uuid[], p_correlation_ids uuid[], p_causation_ids uuid[], p_fingerprints bigint[],
  p_born_at timestamptz[], p_lease_token uuid, p_instance_id uuid, p_lease interval,
  p_hand_over_handlers text[], p_hand_over_limits int[])
RETURNS TABLE (message_id uuid, outcome text, was_newly_created boolean, handler_name text, message_type text,
               lane text, stream_id uuid, sequence bigint, leased boolean)
LANGUAGE plpgsql VOLATILE
SET enable_nestloop = on SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_since timestamptz := clock_timestamp() - make_interval(hours => wh_setting_number('subscription_retention_hours', 24));
  v_handlers text[]; v_types text[]; v_lanes text[];
  v_fresh bigint[]; v_old bigint[]; v_unhandled bigint[];
  v_horizon timestamptz;
  v_now timestamptz;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'messages must be stored at isolation level read committed'
      USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
  -- 1. Subscriptions are read once: a message is remembered by the same ones that it is stored for.
  SELECT array_agg(s.handler_name), array_agg(s.message_type), array_agg(s.lane)
  INTO v_handlers, v_types, v_lanes
  FROM wh_subscriptions s WHERE s.message_type = ANY (p_message_types) AND s.last_seen_at > v_since;

  -- 2. Ids first. An event that nobody wants is not remembered.
  WITH input AS MATERIALIZED (
    SELECT DISTINCT ON (i.id) i.id, i.fingerprint, i.ord
    FROM unnest(p_message_ids, p_message_types, p_commands, p_fingerprints) WITH ORDINALITY
      i(id, type, is_command, fingerprint, ord)
    WHERE i.is_command OR i.type = ANY (v_types)
    ORDER BY i.id, i.ord),
  fresh AS (
    INSERT INTO wh_message_deduplication AS d (message_id, first_seen_at, fingerprint)
    SELECT i.id, clock_timestamp(), i.fingerprint FROM input i ORDER BY i.id
    ON CONFLICT ON CONSTRAINT wh_message_deduplication_pkey DO NOTHING
    RETURNING d.message_id)
  SELECT array_agg(i.ord) INTO v_fresh FROM input i
  WHERE (i.id IN (SELECT f.message_id FROM fresh f)) IS TRUE;

  -- 3. The horizon, in a later statement than the ids. What is too old, and commands nobody handles,
  -- are kept as dead letters.
  IF v_fresh IS NOT NULL THEN
    v_horizon := dedup_horizon();
    SELECT array_agg(i.ord) FILTER (WHERE i.old), array_agg(i.ord) FILTER (WHERE NOT i.old)
    INTO v_old, v_unhandled
    FROM (SELECT u.ord, u.type, coalesce(u.born_at < v_horizon, false) AS old
          FROM unnest(p_born_at, p_message_types) WITH ORDINALITY u(born_at, type, ord)
          WHERE (u.ord IN (SELECT unnest(v_fresh))) IS TRUE) i
    WHERE i.old OR (i.type = ANY (v_types)) IS NOT TRUE;
  END IF;
  IF v_old IS NOT NULL OR v_unhandled IS NOT NULL THEN
    INSERT INTO wh_dead_letters (source, message_id, message_type, is_command, event_data, metadata,
      stream_id, correlation_id, causation_id, reason, error, received_at)
    SELECT 'inbox', i.id, i.type, i.is_command, i.event_data::json, i.metadata::json, i.stream, i.correlation,
      i.causation, CASE WHEN i.ord = ANY (v_old) THEN 'too_old' ELSE 'unhandled' END,
      CASE WHEN i.ord = ANY (v_old)
        THEN 'the message was born at ' || i.born_at || ', before the deduplication window began at ' || v_horizon
             || ': nobody can tell whether it was handled before'
        ELSE 'no handler subscribes to this command' END,
      clock_timestamp()
    FROM unnest(p_message_ids, p_message_types, p_commands, p_event_data, p_metadata, p_stream_ids,
                p_correlation_ids, p_causation_ids, p_born_at) WITH ORDINALITY
      i(id, type, is_command, event_data, metadata, stream, correlation, causation, born_at, ord)
    WHERE i.ord = ANY (v_old) OR i.ord = ANY (v_unhandled)
    ORDER BY i.ord;
    SELECT array_agg(f.ord) INTO v_fresh FROM unnest(v_fresh) f(ord)
    WHERE (f.ord = ANY (v_old)) IS NOT TRUE AND (f.ord = ANY (v_unhandled)) IS NOT TRUE;
  END IF;

  -- 4. Fan-out. A row is born quiet if its stream's gate stands, or is opened here.
  IF v_fresh IS NOT NULL THEN
  v_now := clock_timestamp();
  RETURN QUERY
  WITH item AS MATERIALIZED (
    SELECT i.*, s.handler, s.lane, s.subscribers > 1 AND octet_length(i.event_data) > 4096 AS shared
    FROM unnest(p_message_ids, p_message_types, p_commands, p_event_data, p_metadata, p_stream_ids,
                p_correlation_ids, p_causation_ids) WITH ORDINALITY
      i(id, type, is_command, event_data, metadata, stream, correlation, causation, ord)
    JOIN (SELECT u.*, count(*) OVER (PARTITION BY u.type) AS subscribers
          FROM unnest(v_handlers, v_types, v_lanes) u(handler, type, lane)) s ON s.type = i.type
    WHERE (i.ord IN (SELECT unnest(v_fresh))) IS TRUE),
  payload AS (
    INSERT INTO wh_inbox_payloads (message_id, event_data, metadata)
    SELECT DISTINCT ON (i.id) i.id, i.event_data::json, i.metadata::json FROM item i WHERE i.shared
    -- What is left of an earlier life of the id belongs to nobody.
    ON CONFLICT ON CONSTRAINT wh_inbox_payloads_pkey
    DO UPDATE SET event_data = EXCLUDED.event_data, metadata = EXCLUDED.metadata, stored_at = clock_timestamp()),
  stream AS MATERIALIZED (
    SELECT k.lane, k.stream, k.gated, NOT k.gated AND EXISTS (
      SELECT FROM wh_inbox e WHERE e.lane = k.lane AND e.stream_id = k.stream) AS earlier
    FROM (SELECT d.lane, d.stream, EXISTS (
            SELECT FROM wh_inbox_streams g WHERE g.lane = d.lane AND g.stream_id = d.stream) AS gated
          FROM (SELECT DISTINCT i.lane, i.stream FROM item i WHERE i.stream IS NOT NULL) d OFFSET 0) k),
  held AS MATERIALIZED (
    SELECT g.lane, g.stream_id FROM stream k CROSS JOIN LATERAL (
      SELECT g.lane, g.stream_id FROM wh_inbox_streams g
      WHERE k.gated AND g.lane = k.lane AND g.stream_id = k.stream
      FOR KEY SHARE OF g SKIP LOCKED) g),
  -- What may be handed over, numbered by handler; streams that are blocked take none of the room.
  eligible AS (
    SELECT i.id, i.handler, i.lane, i.stream, i.ord,
      coalesce(row_number() OVER (PARTITION BY i.handler ORDER BY i.ord) <= b.rows, false) AS fits
    FROM item i
    LEFT JOIN unnest(p_hand_over_handlers, p_hand_over_limits) b(handler, rows) ON b.handler = i.handler
    WHERE p_lease_token IS NOT NULL AND (i.stream IS NULL OR ((i.lane, i.stream) IN (
      SELECT k.lane, k.stream FROM stream k WHERE NOT k.gated AND NOT k.earlier)) IS TRUE)),
  offer AS MATERIALIZED (
    SELECT o.id, o.handler, o.lane, o.stream FROM (
      -- A stream goes over from its first row on, without a gap.
      SELECT e.*, CASE WHEN e.stream IS NULL THEN e.fits
        ELSE bool_and(e.fits) OVER (PARTITION BY e.lane, e.stream ORDER BY e.ord, e.handler) END AS mine
      FROM eligible e) o
    WHERE o.mine),
  opened AS (
    INSERT INTO wh_inbox_streams AS g (lane, stream_id, due_at, lease_token, instance_id)
    SELECT k.lane, k.stream, CASE WHEN k.mine THEN v_now + p_lease ELSE v_now END,
      CASE WHEN k.mine THEN p_lease_token END, CASE WHEN k.mine THEN p_instance_id END
    FROM (SELECT s.lane, s.stream, (s.lane, s.stream) IN (
            SELECT o.lane, o.stream FROM offer o WHERE o.stream IS NOT NULL) AS mine
          FROM stream s WHERE NOT s.gated) k
    ORDER BY k.lane, k.stream
    ON CONFLICT ON CONSTRAINT wh_inbox_streams_pkey DO NOTHING
    RETURNING g.lane, g.stream_id, g.lease_token IS NOT NULL AS mine),
  answered AS MATERIALIZED (
    SELECT h.lane, h.stream_id FROM held h UNION ALL SELECT o.lane, o.stream_id FROM opened o),
  stored AS (
    INSERT INTO wh_inbox AS w (message_id, handler_name, message_type, is_command, event_data, metadata, lane,
      stream_id, correlation_id, causation_id, due_at, lease_token, instance_id, received_at)
    SELECT i.id, i.handler, i.type, i.is_command, CASE WHEN NOT i.shared THEN i.event_data::json END,
      CASE WHEN NOT i.shared THEN i.metadata::json END, i.lane, i.stream, i.correlation, i.causation,
      CASE WHEN i.mine THEN v_now + p_lease
           WHEN (i.lane, i.stream) IN (SELECT a.lane, a.stream_id FROM answered a) THEN NULL
           ELSE v_now END,
      CASE WHEN i.mine THEN p_lease_token END, CASE WHEN i.mine THEN p_instance_id END, v_now
    FROM (SELECT t.*, t.stream IS NULL AND (t.id, t.handler) IN (
            SELECT o.id, o.handler FROM offer o WHERE o.stream IS NULL) AS mine
          FROM item t OFFSET 0) i
    ORDER BY i.ord, i.handler
    ON CONFLICT ON CONSTRAINT wh_inbox_pkey DO NOTHING
    RETURNING w.message_id, w.handler_name, w.message_type, w.lane, w.stream_id, w.sequence, w.lease_token)
  SELECT s.message_id, 'stored', true, s.handler_name, s.message_type, s.lane, s.stream_id, s.sequence,
    CASE WHEN s.stream_id IS NULL THEN s.lease_token IS NOT NULL
         ELSE (s.message_id, s.handler_name) IN (
           SELECT o.id, o.handler FROM offer o
           WHERE ((o.lane, o.stream) IN (SELECT g.lane, g.stream_id FROM opened g WHERE g.mine)) IS TRUE) END
  FROM stored s;
  END IF;

  -- 5. Every other delivery. The fingerprint that counts is the one that came first, perhaps just now.
  IF coalesce(cardinality(v_fresh), 0) < cardinality(p_message_ids) THEN
  RETURN QUERY
  SELECT i.id,
    CASE WHEN (i.is_command OR i.type = ANY (v_types)) IS NOT TRUE THEN 'dropped'
         WHEN i.ord = ANY (v_old) THEN 'too_old'
         WHEN i.ord = ANY (v_unhandled) THEN 'unhandled'
         WHEN d.fingerprint <> i.fingerprint THEN 'conflict'
         ELSE 'duplicate' END,
    false, NULL::text, i.type, NULL::text, i.stream, NULL::bigint, false
  FROM unnest(p_message_ids, p_message_types, p_commands, p_stream_ids, p_fingerprints) WITH ORDINALITY
    i(id, type, is_command, stream, fingerprint, ord)
  LEFT JOIN LATERAL (
    SELECT k.fingerprint FROM wh_message_deduplication k WHERE k.message_id = i.id OFFSET 0) d ON true
  WHERE (i.ord IN (SELECT unnest(v_fresh))) IS NOT TRUE
  ORDER BY i.ord;
  END IF;
END $$;
COMMENT ON FUNCTION store_inbox_messages IS 'Stores new messages, one row for each subscribed handler; duplicates add nothing';
