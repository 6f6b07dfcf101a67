-- Keeps deliveries that are no messages, with their bytes. Called by the consumer.
CREATE OR REPLACE FUNCTION store_dead_letters(
  p_source text, p_message_ids uuid[], p_message_types text[], p_raw_data bytea[], p_metadata text[],
  p_reasons text[], p_errors text[])
RETURNS bigint LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
  WITH stored AS (
    INSERT INTO wh_dead_letters (source, message_id, message_type, raw_data, metadata, reason, error)
    SELECT p_source, i.id, i.type, i.raw, i.metadata::json, i.reason, i.error
    FROM unnest(p_message_ids, p_message_types, p_raw_data, p_metadata, p_reasons, p_errors)
      i(id, type, raw, metadata, reason, error)
    RETURNING 1)
  SELECT count(*) FROM stored
$$;
COMMENT ON FUNCTION store_dead_letters IS 'Keeps deliveries that are no messages';
