-- Writes what the command came to beside its key, in the transaction that wrote the key: a reply, or an
-- error that is its answer for good. 'recorded'; 'unfenced': the handler ended that transaction;
-- 'missing': there is no such key. Index: wh_command_results_pkey.
CREATE OR REPLACE FUNCTION finish_command(p_scope text, p_key text, p_result text, p_error text)
RETURNS text LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
  v_begun text := coalesce(current_setting('whizbang.command', true), '');
  v_own text := '/' || hashtextextended(
    length(p_scope) || ':' || p_scope || p_key, 'wh_command_results'::regclass::oid::bigint);
BEGIN
  IF right(v_begun, length(v_own)) <> v_own THEN
    RETURN 'unfenced';
  END IF;
  PERFORM set_config('whizbang.command', left(v_begun, -length(v_own)), true);
  UPDATE wh_command_results r SET result = p_result::json, error = p_error::json, completed = true
  WHERE r.scope = p_scope AND r.key = p_key;
  RETURN CASE WHEN FOUND THEN 'recorded' ELSE 'missing' END;
END $$;
COMMENT ON FUNCTION finish_command IS 'Writes what a command came to';
