-- Puts dead letters back to work, with fresh attempts, although their ids are known.
-- Inbox: back to its handler, at the end of its stream; a parked one at its old place, where its stream
-- has been waiting for it. One without handler (unhandled, too old) is given to whoever subscribes now.
-- Outbox: back to its destination, at the end. Called by an operator.
-- Locks: the dead letters, then gates in (lane, stream) order. Each is requeued once, whoever calls.
CREATE OR REPLACE FUNCTION requeue_dead_letters(p_ids bigint[])
RETURNS TABLE (id bigint, outcome text) LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  v_since timestamptz := clock_timestamp() - make_interval(hours => wh_setting_number('subscription_retention_hours', 24));
  v_now timestamptz := clock_timestamp();
  v_ids bigint[];
  v_done bigint[];
BEGIN
  SELECT array_agg(l.id) INTO v_ids FROM (
    SELECT l.id FROM wh_dead_letters l WHERE l.id = ANY (p_ids) ORDER BY l.id FOR UPDATE) l;

  WITH letter AS MATERIALIZED (SELECT l.* FROM wh_dead_letters l WHERE l.id = ANY (v_ids)),
  outgoing AS (
    INSERT INTO wh_outbox (message_id, destination, message_type, is_command, event_data, metadata, stream_id,
      correlation_id, causation_id)
    SELECT l.message_id, l.destination, l.message_type, l.is_command, l.event_data, l.metadata, l.stream_id,
      l.correlation_id, l.causation_id
    FROM letter l WHERE l.source = 'outbox' ORDER BY l.sequence
    ON CONFLICT ON CONSTRAINT wh_outbox_pkey DO NOTHING),
  item AS MATERIALIZED (
    SELECT l.id, l.message_id, l.message_type, l.is_command, l.event_data, l.metadata, l.stream_id, l.correlation_id,
      l.causation_id, l.parked, l.sequence, coalesce(l.handler_name, s.handler_name) AS handler,
      coalesce(l.lane, s.lane) AS lane
    FROM letter l
    LEFT JOIN wh_subscriptions s ON l.handler_name IS NULL AND s.message_type = l.message_type AND s.last_seen_at > v_since
    WHERE l.source = 'inbox' AND l.event_data IS NOT NULL AND coalesce(l.handler_name, s.handler_name) IS NOT NULL
      -- A row for a handler that the service no longer has would wait for nobody.
      AND (l.handler_name IS NULL OR EXISTS (SELECT FROM wh_subscriptions h WHERE h.handler_name = l.handler_name))),
  gate AS (
    INSERT INTO wh_inbox_streams AS g (lane, stream_id, due_at)
    SELECT DISTINCT i.lane, i.stream_id, v_now FROM item i WHERE i.stream_id IS NOT NULL
    ORDER BY i.lane, i.stream_id
    ON CONFLICT ON CONSTRAINT wh_inbox_streams_pkey
    DO UPDATE SET due_at = CASE WHEN g.due_at = 'infinity' AND (g.lane, g.stream_id) IN (
                               SELECT i.lane, i.stream_id FROM item i WHERE i.parked)
                           THEN clock_timestamp() ELSE g.due_at END,
                  handler_name = NULL
    RETURNING 1),
  gates AS (SELECT count(*) FROM gate),
  stored AS (
    INSERT INTO wh_inbox (message_id, handler_name, message_type, is_command, event_data, metadata, lane, stream_id,
      sequence, correlation_id, causation_id, due_at)
    SELECT i.message_id, i.handler, i.message_type, coalesce(i.is_command, false), i.event_data, i.metadata, i.lane,
      i.stream_id, CASE WHEN i.parked THEN i.sequence ELSE nextval(pg_get_serial_sequence('wh_inbox', 'sequence')) END,
      i.correlation_id, i.causation_id, CASE WHEN i.stream_id IS NULL THEN clock_timestamp() END
    FROM item i CROSS JOIN gates ORDER BY i.sequence, i.id
    ON CONFLICT ON CONSTRAINT wh_inbox_pkey DO NOTHING),
  gone AS (
    DELETE FROM wh_dead_letters d WHERE d.id IN (
      SELECT i.id FROM item i UNION SELECT l.id FROM letter l WHERE l.source = 'outbox')
    RETURNING d.id)
  SELECT array_agg(g.id) INTO v_done FROM gone g;

  RETURN QUERY
  SELECT p.id, CASE WHEN p.id = ANY (v_done) THEN 'requeued'
                    WHEN l.id IS NULL THEN 'gone'
                    WHEN l.event_data IS NULL OR l.source = 'transport' THEN 'not_requeueable'
                    ELSE 'unhandled' END
  FROM unnest(p_ids) p(id) LEFT JOIN wh_dead_letters l ON l.id = p.id;
END $$;
COMMENT ON FUNCTION requeue_dead_letters IS 'Puts dead letters back to work';
