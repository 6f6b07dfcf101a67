-- Decides whether a command may run. Called in the handler's transaction before the user's code.
-- 'fresh': the key is written, run it. 'done': executed before, here is what it came to. 'reused':
-- executed before with another payload. 'busy': another transaction works with the key right now.
-- 'isolation': this snapshot cannot see what becomes, or became, of the key. 'unfinished': begun and
-- committed without an end.
-- A repeat is answered by the first look alone: no lock, no write. The advisory lock is only tried, so
-- nobody ever waits inside the database for somebody else's execution. The setting tells
-- finish_command that the transaction is still the same; it lists the commands that have begun in it,
-- so that one inside another does not speak for the outer one. Index: wh_command_results_pkey.
CREATE OR REPLACE FUNCTION begin_command(p_scope text, p_key text, p_fingerprint bytea, p_method_version text)
RETURNS TABLE (state text, fingerprint bytea, result text, error text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
  v_row record;
  v_hash bigint := hashtextextended(
    length(p_scope) || ':' || p_scope || p_key, 'wh_command_results'::regclass::oid::bigint);
BEGIN
  SELECT r.fingerprint, r.result, r.error, r.completed INTO v_row FROM wh_command_results r
  WHERE r.scope = p_scope AND r.key = p_key;
  IF NOT FOUND THEN
    IF NOT pg_try_advisory_xact_lock(v_hash) THEN
      RETURN QUERY SELECT CASE WHEN current_setting('transaction_isolation') = 'read committed' THEN 'busy'
        ELSE 'isolation' END, NULL::bytea, NULL::text, NULL::text;
      RETURN;
    END IF;
    INSERT INTO wh_command_results (scope, key, fingerprint, method_version)
    VALUES (p_scope, p_key, p_fingerprint, p_method_version)
    ON CONFLICT ON CONSTRAINT wh_command_results_pkey DO NOTHING;
    IF FOUND THEN
      PERFORM set_config('whizbang.command',
        coalesce(current_setting('whizbang.command', true), '') || '/' || v_hash, true);
      RETURN QUERY SELECT 'fresh', NULL::bytea, NULL::text, NULL::text;
      RETURN;
    END IF;
    SELECT r.fingerprint, r.result, r.error, r.completed INTO v_row FROM wh_command_results r
    WHERE r.scope = p_scope AND r.key = p_key;
    IF NOT FOUND THEN
      RETURN QUERY SELECT 'isolation', NULL::bytea, NULL::text, NULL::text;
      RETURN;
    END IF;
  END IF;
  RETURN QUERY SELECT
    CASE WHEN NOT v_row.completed THEN 'unfinished'
      WHEN v_row.fingerprint = p_fingerprint THEN 'done'
      ELSE 'reused' END,
    v_row.fingerprint, v_row.result::text, v_row.error::text;
END $$;
COMMENT ON FUNCTION begin_command IS 'Decides whether an idempotent command may run';
