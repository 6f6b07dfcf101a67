-- Removes shared payloads that no inbox row needs any more.
-- Called by completions. Two completions that race each see the other's row and leave the payload;
-- maintenance removes it then. Indexes: both primary keys.
CREATE OR REPLACE FUNCTION drop_unused_payloads(p_message_ids uuid[])
RETURNS void LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
  DELETE FROM wh_inbox_payloads p WHERE p.message_id = ANY (p_message_ids)
    AND NOT EXISTS (SELECT FROM wh_inbox i WHERE i.message_id = p.message_id)
$$;
COMMENT ON FUNCTION drop_unused_payloads IS 'Removes shared payloads that nothing needs';
