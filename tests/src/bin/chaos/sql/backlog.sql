-- Rows that some service still has to deal with.
SELECT (SELECT count(*) FROM bank.wh_inbox) + (SELECT count(*) FROM bank.wh_outbox)
     + (SELECT count(*) FROM clearing.wh_inbox) + (SELECT count(*) FROM clearing.wh_outbox)
