-- Writes the reply beside the key, in the transaction that wrote the key. Index: wh_command_results_pkey.
CREATE OR REPLACE FUNCTION finish_command(p_scope text, p_key text, p_result text)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  UPDATE wh_command_results r SET result = p_result::json, completed = true WHERE r.scope = p_scope AND r.key = p_key;
  RETURN FOUND;
END $$;
COMMENT ON FUNCTION finish_command IS 'Writes a command''s reply';
