-- A setting as a positive number; a value that is none is ignored loudly in favour of the default.
-- Called by the other functions. Takes no locks.
CREATE OR REPLACE FUNCTION wh_setting_number(p_key text, p_default int)
RETURNS int LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
  v_value text;
BEGIN
  SELECT s.setting_value INTO v_value FROM wh_settings s WHERE s.setting_key = p_key;
  IF v_value IS NULL THEN
    RETURN p_default;
  END IF;
  IF v_value ~ '^[0-9]{1,5}$' AND v_value::int > 0 THEN
    RETURN v_value::int;
  END IF;
  RAISE WARNING 'wh_settings.% = % is not a number from 1 to 99999; using %', p_key, quote_literal(v_value), p_default;
  RETURN p_default;
END $$;
COMMENT ON FUNCTION wh_setting_number IS 'A setting as a positive number, or the default';
