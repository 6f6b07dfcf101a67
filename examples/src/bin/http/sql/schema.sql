-- The tables of the shop. Run at every start.
-- No unique key besides the ids: a second effect must be seen, not swallowed. The counter of packed
-- orders adds up for the same reason.

CREATE TABLE IF NOT EXISTS orders (
  order_id uuid PRIMARY KEY,
  sku text NOT NULL,
  quantity bigint NOT NULL,
  note text,
  packed bigint NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS stock (
  sku text PRIMARY KEY,
  available bigint NOT NULL
);

INSERT INTO stock (sku, available) VALUES ('tea', 1000), ('coffee', 1000), ('cocoa', 3)
ON CONFLICT (sku) DO NOTHING;
