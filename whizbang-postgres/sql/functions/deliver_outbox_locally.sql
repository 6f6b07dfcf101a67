-- Moves ready rows from the outbox to the inbox of the same service, exactly once and in order.
-- Called by the local relay. An advisory lock lets one delivery at a time through, so that a later
-- row of a stream never overtakes an earlier one; it ends with the statement's transaction.
-- p_after is where the caller may begin; the last two columns say which transactions were running, so
-- that it does not begin above a row that one of them has yet to make visible.
-- Locks: the advisory lock, the outbox rows, then as store_inbox_messages. Index: wh_outbox_ready.
CREATE OR REPLACE FUNCTION deliver_outbox_locally(
  p_destination text, p_limit int, p_lease_token uuid, p_instance_id uuid, p_lease interval,
  p_hand_over_handlers text[], p_hand_over_limits int[], p_after bigint DEFAULT 0)
RETURNS TABLE (message_id uuid, outcome text, was_newly_created boolean, handler_name text, message_type text,
               lane text, stream_id uuid, sequence bigint, leased boolean, event_data text, metadata text,
               correlation_id uuid, causation_id uuid, received_at timestamptz, outbox_sequence bigint,
               oldest_running bigint, next_running bigint)
LANGUAGE plpgsql VOLATILE
SET enable_nestloop = off
SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  v_ids uuid[]; v_types text[]; v_commands boolean[]; v_data text[]; v_metadata text[]; v_streams uuid[];
  v_correlations uuid[]; v_causations uuid[]; v_sequences bigint[]; v_prints bigint[]; v_births timestamptz[];
  v_running pg_snapshot;
BEGIN
  IF NOT EXISTS (SELECT FROM wh_outbox o WHERE o.destination = p_destination AND o.scheduled_at IS NULL
                   AND o.retry_at IS NULL AND o.sequence >= p_after)
     AND NOT EXISTS (SELECT FROM wh_outbox o WHERE o.destination = p_destination
                       AND o.scheduled_at IS NOT NULL AND o.scheduled_at <= clock_timestamp()) THEN
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended(p_destination, 'wh_outbox'::regclass::oid::bigint));
  PERFORM promote_scheduled(p_destination, p_limit);

  SELECT array_agg(r.message_id) INTO v_ids FROM (
    SELECT o.message_id FROM wh_outbox o
    WHERE o.destination = p_destination AND o.scheduled_at IS NULL AND o.retry_at IS NULL AND o.sequence >= p_after
    ORDER BY o.sequence LIMIT p_limit FOR UPDATE) r;
  WITH gone AS (
    DELETE FROM wh_outbox o WHERE o.destination = p_destination AND o.message_id = ANY (v_ids)
    RETURNING o.*),
  sorted AS (SELECT g.* FROM gone g ORDER BY g.sequence)
  SELECT array_agg(g.message_id), array_agg(g.message_type), array_agg(g.is_command), array_agg(g.event_data::text),
    array_agg(g.metadata::text), array_agg(g.stream_id), array_agg(g.correlation_id), array_agg(g.causation_id),
    array_agg(g.sequence), array_agg(NULL::bigint), array_agg(clock_timestamp())
  INTO v_ids, v_types, v_commands, v_data, v_metadata, v_streams, v_correlations, v_causations, v_sequences,
    v_prints, v_births
  FROM sorted g;
  IF v_ids IS NULL THEN
    RETURN;
  END IF;

  -- After the look: whoever has drawn a lower number by now is among these.
  v_running := pg_current_snapshot();

  RETURN QUERY
  SELECT s.message_id, s.outcome, s.was_newly_created, s.handler_name, s.message_type, s.lane, s.stream_id,
    s.sequence, s.leased, CASE WHEN s.leased THEN m.data END, CASE WHEN s.leased THEN m.metadata END,
    m.correlation, m.causation, clock_timestamp(), m.sequence,
    pg_snapshot_xmin(v_running)::text::bigint, pg_snapshot_xmax(v_running)::text::bigint
  FROM store_inbox_messages(v_ids, v_types, v_commands, v_data, v_metadata, v_streams, v_correlations, v_causations,
         v_prints, v_births, p_lease_token, p_instance_id, p_lease, p_hand_over_handlers, p_hand_over_limits) s
  JOIN unnest(v_ids, v_data, v_metadata, v_correlations, v_causations, v_sequences)
    m(id, data, metadata, correlation, causation, sequence) ON m.id = s.message_id;
END $$;
COMMENT ON FUNCTION deliver_outbox_locally IS 'Moves outbox rows of this service into its inbox, exactly once';
