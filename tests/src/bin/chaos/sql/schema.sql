-- What the handlers of both services write. No unique key: a second effect must be seen, not refused.
CREATE TABLE accounts (account bigint PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
-- The last place given out in each stream of events; its row owns the stream.
CREATE TABLE places (kind text, account bigint, last bigint NOT NULL DEFAULT 0, PRIMARY KEY (kind, account));
CREATE TABLE effects (id bigserial PRIMARY KEY, handler text, account bigint, place bigint, number bigint);
CREATE TABLE mails (number bigint PRIMARY KEY, times bigint NOT NULL);
INSERT INTO accounts (account) SELECT generate_series(0, 15);
INSERT INTO places (kind, account) SELECT k, a FROM unnest('{debited,credited}'::text[]) k, generate_series(0, 15) a;
