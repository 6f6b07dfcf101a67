-- Stores what is new, one row for each subscribed handler; says for every id what became of it.
-- Called by the consumer and by deliver_outbox_locally, as the only statement that touches gates in
-- its transaction. Needs READ COMMITTED.
-- Locks: dedup rows in id order, then gates in (lane, stream) order; never the other way round, so
-- concurrent batches in opposite orders wait for each other but do not deadlock.
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
  v_fresh uuid[];
  v_horizon timestamptz;
  v_buried uuid[];
  v_now timestamptz;
  -- Of one stream at most so many rows are handed over; the worker fetches the rest.
  c_run constant int := 20;
BEGIN
  -- 1. Ids first. An event that nobody wants is not remembered.
  WITH input AS (
    SELECT DISTINCT ON (i.id) i.id, i.type, i.is_command, i.fingerprint
    FROM unnest(p_message_ids, p_message_types, p_commands, p_fingerprints) WITH ORDINALITY
      i(id, type, is_command, fingerprint, ord)
    ORDER BY i.id, i.ord),
  fresh AS (
    INSERT INTO wh_message_deduplication AS d (message_id, first_seen_at, fingerprint)
    SELECT i.id, clock_timestamp(), i.fingerprint FROM input i
    WHERE i.is_command OR EXISTS (
      SELECT FROM wh_subscriptions s WHERE s.message_type = i.type AND s.last_seen_at > v_since)
    ORDER BY i.id
    ON CONFLICT ON CONSTRAINT wh_message_deduplication_pkey DO NOTHING
    RETURNING d.message_id)
  SELECT array_agg(f.message_id) INTO v_fresh FROM fresh f;

  -- 2. The horizon, in a later statement than the ids.
  v_horizon := dedup_horizon();

  -- 3. What is too old, and commands nobody handles, are kept as dead letters.
  WITH input AS (
    SELECT DISTINCT ON (i.id) i.*
    FROM unnest(p_message_ids, p_message_types, p_commands, p_event_data, p_metadata, p_stream_ids,
                p_correlation_ids, p_causation_ids, p_born_at) WITH ORDINALITY
      i(id, type, is_command, event_data, metadata, stream, correlation, causation, born_at, ord)
    WHERE i.id IN (SELECT unnest(v_fresh))
    ORDER BY i.id, i.ord),
  buried AS (
    INSERT INTO wh_dead_letters AS l (source, message_id, message_type, is_command, event_data, metadata,
      stream_id, correlation_id, causation_id, reason, error, received_at)
    SELECT 'inbox', i.id, i.type, i.is_command, i.event_data::json, i.metadata::json, i.stream, i.correlation,
      i.causation, CASE WHEN i.born_at < v_horizon THEN 'too_old' ELSE 'unhandled' END,
      CASE WHEN i.born_at < v_horizon
        THEN 'the message was born at ' || i.born_at || ', before the deduplication window began at ' || v_horizon
             || ': nobody can tell whether it was handled before'
        ELSE 'no handler subscribes to this command' END,
      clock_timestamp()
    FROM input i
    WHERE i.born_at < v_horizon
       OR NOT EXISTS (SELECT FROM wh_subscriptions s WHERE s.message_type = i.type AND s.last_seen_at > v_since)
    RETURNING l.message_id, l.reason)
  SELECT array_agg(b.message_id) INTO v_buried FROM buried b;

  -- 4. Fan-out. A row is born quiet if its stream's gate stands, or is opened here.
  v_now := clock_timestamp();
  RETURN QUERY
  WITH input AS MATERIALIZED (
    SELECT DISTINCT ON (i.id) i.*
    FROM unnest(p_message_ids, p_message_types, p_commands, p_event_data, p_metadata, p_stream_ids,
                p_correlation_ids, p_causation_ids) WITH ORDINALITY
      i(id, type, is_command, event_data, metadata, stream, correlation, causation, ord)
    WHERE i.id IN (SELECT unnest(v_fresh)) AND i.id NOT IN (SELECT unnest(v_buried))
    ORDER BY i.id, i.ord),
  item AS MATERIALIZED (
    SELECT i.*, s.handler_name AS handler, s.lane,
      row_number() OVER (ORDER BY i.ord, s.handler_name) AS n,
      count(*) OVER (PARTITION BY i.id) > 1 AND octet_length(i.event_data) > 4096 AS shared
    FROM input i JOIN wh_subscriptions s ON s.message_type = i.type AND s.last_seen_at > v_since),
  payload AS (
    INSERT INTO wh_inbox_payloads (message_id, event_data, metadata)
    SELECT DISTINCT ON (i.id) i.id, i.event_data::json, i.metadata::json FROM item i WHERE i.shared
    ON CONFLICT ON CONSTRAINT wh_inbox_payloads_pkey DO NOTHING),
  budget AS MATERIALIZED (
    SELECT b.handler, b.rows FROM unnest(p_hand_over_handlers, p_hand_over_limits) b(handler, rows)
    WHERE p_lease_token IS NOT NULL),
  stream AS MATERIALIZED (
    SELECT k.lane, k.stream, k.handler, b.rows,
      row_number() OVER (PARTITION BY k.handler ORDER BY k.n) AS place
    FROM (SELECT DISTINCT ON (i.lane, i.stream) i.lane, i.stream, i.handler, i.n
          FROM item i WHERE i.stream IS NOT NULL ORDER BY i.lane, i.stream, i.n) k
    LEFT JOIN budget b ON b.handler = k.handler),
  held AS MATERIALIZED (
    SELECT g.lane, g.stream_id FROM stream k CROSS JOIN LATERAL (
      SELECT g.lane, g.stream_id FROM wh_inbox_streams g
      WHERE g.lane = k.lane AND g.stream_id = k.stream
      FOR KEY SHARE OF g SKIP LOCKED) g),
  new AS MATERIALIZED (
    SELECT s.lane, s.stream, coalesce(s.place <= s.rows, false) AND NOT EXISTS (
      SELECT FROM wh_inbox e WHERE e.lane = s.lane AND e.stream_id = s.stream) AS mine
    FROM stream s
    WHERE NOT EXISTS (SELECT FROM wh_inbox_streams g WHERE g.lane = s.lane AND g.stream_id = s.stream)),
  opened AS (
    INSERT INTO wh_inbox_streams AS g (lane, stream_id, due_at, lease_token, instance_id)
    SELECT k.lane, k.stream, CASE WHEN k.mine THEN v_now + p_lease ELSE v_now END,
      CASE WHEN k.mine THEN p_lease_token END, CASE WHEN k.mine THEN p_instance_id END
    FROM new k ORDER BY k.lane, k.stream
    ON CONFLICT ON CONSTRAINT wh_inbox_streams_pkey DO NOTHING
    RETURNING g.lane, g.stream_id, g.lease_token IS NOT NULL AS mine),
  answered AS MATERIALIZED (
    SELECT h.lane, h.stream_id FROM held h UNION ALL SELECT o.lane, o.stream_id FROM opened o),
  -- Memberships are asked with IN, which is hashed; a join of these lists would be quadratic.
  placed AS MATERIALIZED (
    SELECT i.*, (i.lane, i.stream) IN (SELECT a.lane, a.stream_id FROM answered a) AS quiet,
      CASE WHEN i.stream IS NULL
        THEN row_number() OVER (PARTITION BY i.handler, i.stream IS NULL ORDER BY i.n) <= b.rows
        ELSE (i.lane, i.stream) IN (SELECT o.lane, o.stream_id FROM opened o WHERE o.mine)
          AND bool_and(b.rows IS NOT NULL) OVER before AND row_number() OVER before <= c_run
      END AS mine
    FROM item i LEFT JOIN budget b ON b.handler = i.handler
    WINDOW before AS (PARTITION BY i.lane, i.stream ORDER BY i.n)),
  stored AS (
    INSERT INTO wh_inbox AS w (message_id, handler_name, message_type, is_command, event_data, metadata, lane,
      stream_id, correlation_id, causation_id, due_at, lease_token, instance_id, received_at)
    SELECT i.id, i.handler, i.type, i.is_command, CASE WHEN NOT i.shared THEN i.event_data::json END,
      CASE WHEN NOT i.shared THEN i.metadata::json END, i.lane, i.stream, i.correlation, i.causation,
      CASE WHEN i.quiet THEN NULL WHEN i.stream IS NULL AND i.mine THEN v_now + p_lease ELSE v_now END,
      CASE WHEN i.stream IS NULL AND i.mine THEN p_lease_token END,
      CASE WHEN i.stream IS NULL AND i.mine THEN p_instance_id END, v_now
    FROM placed i ORDER BY i.n
    ON CONFLICT ON CONSTRAINT wh_inbox_pkey DO NOTHING
    RETURNING w.message_id, w.handler_name, w.message_type, w.lane, w.stream_id, w.sequence)
  SELECT s.message_id, 'stored', true, s.handler_name, s.message_type, s.lane, s.stream_id, s.sequence,
    (s.message_id, s.handler_name) IN (SELECT i.id, i.handler FROM placed i WHERE i.mine)
  FROM stored s;

  -- 5. Every other delivery.
  RETURN QUERY
  SELECT i.id,
    CASE WHEN i.place = 1 AND i.id IN (SELECT unnest(v_buried)) THEN
           CASE WHEN i.born_at < v_horizon THEN 'too_old' ELSE 'unhandled' END
         WHEN d.message_id IS NULL THEN 'dropped'
         WHEN d.fingerprint <> i.fingerprint THEN 'conflict'
         ELSE 'duplicate' END,
    false, NULL::text, i.type, NULL::text, i.stream, NULL::bigint, false
  FROM (SELECT u.*, row_number() OVER (PARTITION BY u.id ORDER BY u.ord) AS place
        FROM unnest(p_message_ids, p_message_types, p_stream_ids, p_fingerprints, p_born_at) WITH ORDINALITY
          u(id, type, stream, fingerprint, born_at, ord)) i
  LEFT JOIN wh_message_deduplication d ON d.message_id = i.id
  WHERE i.place > 1 OR i.id IN (SELECT unnest(v_buried)) OR i.id NOT IN (SELECT unnest(v_fresh));
END $$;
COMMENT ON FUNCTION store_inbox_messages IS 'Stores new messages, one row for each subscribed handler; duplicates add nothing';
