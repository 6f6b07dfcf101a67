-- Every dead letter of both services.
SELECT 'bank', message_id, coalesce(handler_name, source), reason, event_data::text, coalesce(error, '')
FROM bank.wh_dead_letters
UNION ALL
SELECT 'clearing', message_id, coalesce(handler_name, source), reason, event_data::text, coalesce(error, '')
FROM clearing.wh_dead_letters
