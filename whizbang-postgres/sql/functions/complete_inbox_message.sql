-- Completes a row as the last statement of its handler's transaction.
-- 'done': nothing of the stream is left. 'more': done, and the caller still holds the stream.
-- 'lost': the lease belongs to somebody else, roll back. 'unfenced': the handler ended the
-- transaction that this one was opened as; its fence setting went with it.
-- Locks: the gate FOR NO KEY UPDATE, then FOR UPDATE to close it; the row by its deletion. A gate is
-- deleted only after a look, in a later statement, under the lock that keeps writers out; at other
-- isolation levels that look would use an old snapshot, so the gate is left to the caller.
-- Indexes: wh_inbox_pkey, wh_inbox_streams_pkey, wh_inbox_stream.
CREATE OR REPLACE FUNCTION complete_inbox_message(
  p_message_id uuid, p_handler_name text, p_lane text, p_stream_id uuid, p_token uuid, p_last boolean)
RETURNS text LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  v_shared boolean;
BEGIN
  IF coalesce(current_setting('whizbang.fence', true), '') <> p_token::text THEN
    RETURN 'unfenced';
  END IF;
  IF p_stream_id IS NULL THEN
    DELETE FROM wh_inbox i
    WHERE i.message_id = p_message_id AND i.handler_name = p_handler_name AND i.lease_token = p_token
    RETURNING i.event_data IS NULL INTO v_shared;
    IF NOT FOUND THEN
      RETURN 'lost';
    END IF;
  ELSE
    PERFORM FROM wh_inbox_streams g
    WHERE g.lane = p_lane AND g.stream_id = p_stream_id AND g.lease_token = p_token FOR NO KEY UPDATE;
    IF NOT FOUND THEN
      RETURN 'lost';
    END IF;
    DELETE FROM wh_inbox i WHERE i.message_id = p_message_id AND i.handler_name = p_handler_name
    RETURNING i.event_data IS NULL INTO v_shared;
    IF NOT FOUND THEN
      RETURN 'lost';
    END IF;
  END IF;
  IF v_shared THEN
    PERFORM drop_unused_payloads(ARRAY[p_message_id]);
  END IF;
  IF p_stream_id IS NULL THEN
    RETURN 'done';
  END IF;
  IF NOT p_last OR current_setting('transaction_isolation') <> 'read committed' THEN
    RETURN 'more';
  END IF;
  PERFORM FROM wh_inbox_streams g
  WHERE g.lane = p_lane AND g.stream_id = p_stream_id FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 'more';
  END IF;
  IF EXISTS (SELECT FROM wh_inbox f WHERE f.lane = p_lane AND f.stream_id = p_stream_id) THEN
    RETURN 'more';
  END IF;
  DELETE FROM wh_inbox_streams g WHERE g.lane = p_lane AND g.stream_id = p_stream_id;
  RETURN 'done';
END $$;
COMMENT ON FUNCTION complete_inbox_message IS 'Completes a message inside its handler''s transaction';
