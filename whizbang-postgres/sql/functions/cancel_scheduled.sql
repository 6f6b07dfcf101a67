-- Cancels messages that are scheduled and have not fallen due; returns how many.
-- Waits for a row that is being promoted, and then finds it no longer scheduled. Index: wh_outbox_pkey.
CREATE OR REPLACE FUNCTION cancel_scheduled(p_message_ids uuid[])
RETURNS bigint LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
  WITH gone AS (
    DELETE FROM wh_outbox o WHERE o.message_id = ANY (p_message_ids) AND o.scheduled_at IS NOT NULL
    RETURNING o.message_id)
  SELECT count(DISTINCT g.message_id) FROM gone g
$$;
COMMENT ON FUNCTION cancel_scheduled IS 'Cancels scheduled messages';
