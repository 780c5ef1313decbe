-- Creates the schema of locks, version 1. A repeat changes nothing. A function of a later version has another name, so
-- that processes of two versions run side by side. `queue.sql` continues the script.
--
-- Functions that clients call find no operator or function of another role, and read no whole table: the planner has no
-- statistics of one that is mostly empty. After a vacuum of an empty table, it also takes a scan of the whole index for a cheap
-- one. So statements for several keys look each key up in a subquery that it cannot join.
BEGIN;
-- Without it, two concurrent CREATE IF NOT EXISTS can fail.
SELECT pg_advisory_xact_lock(1953459813, 1);
CREATE SCHEMA IF NOT EXISTS tower_lock;
CREATE TABLE IF NOT EXISTS tower_lock.version (version int PRIMARY KEY);
CREATE SEQUENCE IF NOT EXISTS tower_lock.counter;
-- A lease that holds a key, under the counters from `counter` to `last`. Its mode is x (exclusive) or s (shared).
CREATE TABLE IF NOT EXISTS tower_lock.lease (
  key text COLLATE "C" NOT NULL, counter bigint NOT NULL, last bigint NOT NULL, lease text COLLATE "C" NOT NULL,
  mode text COLLATE "C" NOT NULL, until timestamptz NOT NULL, PRIMARY KEY (key, counter))
  WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
-- The managers that wait for a key, and the channels of their processes.
CREATE UNLOGGED TABLE IF NOT EXISTS tower_lock.watcher (
  key text COLLATE "C" NOT NULL, manager text COLLATE "C" NOT NULL, channel text COLLATE "C" NOT NULL,
  seen timestamptz NOT NULL, PRIMARY KEY (key, manager));
-- Empty after a crash, a promotion and a restore: the counter may then have lost values.
CREATE UNLOGGED TABLE IF NOT EXISTS tower_lock.era (one bool PRIMARY KEY DEFAULT true CHECK (one));

-- Returns the last of `n` counters, which no other grant of a key uses whose mutex the caller has. Other keys may share
-- them. The sequence begins at the clock in microseconds.
CREATE OR REPLACE FUNCTION tower_lock.draw(n int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE drawn bigint;
BEGIN
  IF NOT EXISTS (SELECT FROM tower_lock.era) THEN
    PERFORM pg_advisory_xact_lock(1953459813, 2);
    IF NOT EXISTS (SELECT FROM tower_lock.era) THEN
      PERFORM setval('tower_lock.counter', greatest(nextval('tower_lock.counter'),
        floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint));
      INSERT INTO tower_lock.era DEFAULT VALUES;
    END IF;
  END IF;
  FOR i IN 1..n LOOP drawn := nextval('tower_lock.counter'); END LOOP;
  RETURN drawn;
END $$;

-- Prepares a transaction of locks. Without `durable`, its commit does not wait for the disk.
CREATE OR REPLACE FUNCTION tower_lock.prepare(durable bool) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v text; -- an assignment is faster than PERFORM
BEGIN
  -- A snapshot from before the mutex would not show the last holder.
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'locks require the isolation level read committed' USING ERRCODE = 'TL003';
  END IF;
  v := set_config('lock_timeout', '400', true);
  IF NOT durable THEN v := set_config('synchronous_commit', 'off', true);
  ELSIF current_setting('synchronous_commit') = 'off' THEN v := set_config('synchronous_commit', 'on', true); END IF;
END $$;

-- Tries the mutex of a key, which the transaction then has until its end.
CREATE OR REPLACE FUNCTION tower_lock.try_enter(k text) RETURNS bool LANGUAGE sql AS $$
  SELECT pg_try_advisory_xact_lock(1953459812, hashtext(k)) $$;

-- Enters the mutex of a key. Returns false if another session is in it and the caller may not wait.
CREATE OR REPLACE FUNCTION tower_lock.enter(k text, durable bool, may_wait bool) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE v text;
BEGIN
  v := tower_lock.prepare(durable);
  IF NOT may_wait THEN RETURN tower_lock.try_enter(k); END IF;
  v := pg_advisory_xact_lock(1953459812, hashtext(k));
  RETURN true;
END $$;

-- Removes expired leases. An expired one that remains belongs to an open fenced transaction.
CREATE OR REPLACE FUNCTION tower_lock.settle(k text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  WITH e AS MATERIALIZED (SELECT counter FROM tower_lock.lease
    WHERE key = k AND until <= clock_timestamp() FOR UPDATE SKIP LOCKED)
  DELETE FROM tower_lock.lease l USING e WHERE l.key = k AND l.counter = e.counter;
END $$;

-- Fails if an attempt is late. Called under the mutex: a release that is sent after this time waits for the grant, or the
-- grant fails.
CREATE OR REPLACE FUNCTION tower_lock.is_timely(not_after float8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF clock_timestamp() > to_timestamp(not_after) THEN
    RAISE EXCEPTION 'the attempt arrived late' USING ERRCODE = 'TL002';
  END IF;
END $$;

-- Returns the counter of a grant, or the remaining TTL of the holder. Both are NULL if the mutex was taken.
CREATE OR REPLACE FUNCTION tower_lock.acquire_one(k text, l text, m text, ttl bigint, not_after float8, durable bool,
  may_wait bool, OUT counter bigint, OUT ttl_ms bigint) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE t timestamptz;
BEGIN
  -- An attempt at a held key only reads: it writes no WAL.
  SELECT max(until) INTO t FROM tower_lock.lease
    WHERE key = k AND until > clock_timestamp() AND lease <> l AND (mode = 'x' OR m = 'x');
  IF t IS NOT NULL THEN
    ttl_ms := greatest(20, ceil(extract(epoch FROM t - clock_timestamp())::numeric * 1000));
    RETURN;
  END IF;
  IF NOT tower_lock.enter(k, durable, may_wait) THEN RETURN; END IF;
  PERFORM tower_lock.draw(0); -- prepares the sequence, which may take a while
  PERFORM tower_lock.is_timely(not_after);
  IF EXISTS (SELECT FROM tower_lock.lease WHERE key = k) THEN
    PERFORM tower_lock.settle(k);
    -- A repeat. The clock is read after every wait.
    UPDATE tower_lock.lease SET until = greatest(until, clock_timestamp() + ttl * interval '1 ms'),
      last = tower_lock.draw(1) WHERE key = k AND lease = l AND mode = m AND until > clock_timestamp()
      RETURNING last INTO counter;
    IF FOUND THEN RETURN; END IF;
    SELECT max(until) INTO t FROM tower_lock.lease WHERE key = k AND (mode = 'x' OR m = 'x');
    IF t IS NOT NULL THEN
      ttl_ms := greatest(20, ceil(extract(epoch FROM t - clock_timestamp())::numeric * 1000));
      RETURN;
    END IF;
  END IF;
  counter := nextval('tower_lock.counter'); -- under the mutex, so a later grant has a larger counter
  INSERT INTO tower_lock.lease VALUES (k, counter, counter, l, m, clock_timestamp() + ttl * interval '1 ms');
END $$;

-- Attempts that arrived together. Returns one row for each, with its ordinal. None waits for the mutex of its key, so that no
-- two sessions wait for each other: both columns are NULL if the mutex was taken.
-- Free keys are granted by one statement.
CREATE OR REPLACE FUNCTION tower_lock.acquire(ks text[], ls text[], ms text[], ttls bigint[], not_after float8,
  durable bool, OUT n bigint, OUT counter bigint, OUT ttl_ms bigint) RETURNS SETOF record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  v text;
  entered bool[]; -- NULL for a key that has a lease
  drawn bigint[];
  granted bigint[];
BEGIN
  v := tower_lock.prepare(durable);
  entered := ARRAY(SELECT CASE WHEN (SELECT true FROM tower_lock.lease WHERE key = u.key LIMIT 1) IS NULL
    THEN tower_lock.try_enter(u.key) END FROM unnest(ks) WITH ORDINALITY u(key, n) ORDER BY u.n);
  v := tower_lock.draw(0); -- prepares the sequence, which may take a while
  v := tower_lock.is_timely(not_after);
  drawn := ARRAY(SELECT CASE WHEN u.entered THEN nextval('tower_lock.counter') END
    FROM unnest(entered) WITH ORDINALITY u(entered, n) ORDER BY u.n);
  WITH g AS (
    INSERT INTO tower_lock.lease SELECT DISTINCT ON (u.key) u.key, u.drawn, u.drawn, u.lease, u.mode,
      clock_timestamp() + u.ttl * interval '1 ms'
      FROM unnest(ks, ls, ms, ttls, drawn) u(key, lease, mode, ttl, drawn)
      WHERE u.drawn IS NOT NULL AND (SELECT true FROM tower_lock.lease x WHERE x.key = u.key LIMIT 1) IS NULL
    RETURNING counter)
  SELECT coalesce(array_agg(g.counter), '{}') INTO granted FROM g;
  IF cardinality(granted) = cardinality(ks) THEN
    RETURN QUERY SELECT u.n, u.drawn, NULL::bigint FROM unnest(drawn) WITH ORDINALITY u(drawn, n);
    RETURN;
  END IF;
  RETURN QUERY SELECT u.n, u.drawn, NULL::bigint FROM unnest(drawn) WITH ORDINALITY u(drawn, n)
    WHERE u.drawn = ANY (granted);
  RETURN QUERY SELECT u.n, NULL::bigint, NULL::bigint FROM unnest(entered) WITH ORDINALITY u(entered, n)
    WHERE NOT u.entered;
  -- Keys that have a lease.
  RETURN QUERY SELECT u.n, o.counter, o.ttl_ms
    FROM unnest(ks, ls, ms, ttls, entered, drawn) WITH ORDINALITY u(key, lease, mode, ttl, entered, drawn, n),
    LATERAL tower_lock.acquire_one(u.key, u.lease, u.mode, u.ttl, not_after, durable, false) o
    WHERE u.entered IS NOT FALSE AND (u.drawn IS NULL OR u.drawn <> ALL (granted));
END $$;

-- Ends a lease, or all leases of the key if `l` is NULL. Returns whether one held the key.
CREATE OR REPLACE FUNCTION tower_lock.finish(k text, l text) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE held bool;
BEGIN
  IF l IS NULL THEN
    -- A renewal may lock several of the rows, in this order.
    WITH e AS MATERIALIZED (SELECT counter FROM tower_lock.lease
      WHERE key = k AND until > clock_timestamp() ORDER BY lease FOR NO KEY UPDATE)
    UPDATE tower_lock.lease x SET until = to_timestamp(0) FROM e WHERE x.key = k AND x.counter = e.counter;
    held := FOUND;
    PERFORM tower_lock.settle(k);
    RETURN held;
  END IF;
  WITH e AS MATERIALIZED (SELECT counter FROM tower_lock.lease
    WHERE key = k AND lease = l AND until > clock_timestamp() FOR UPDATE SKIP LOCKED)
  DELETE FROM tower_lock.lease x USING e WHERE x.key = k AND x.counter = e.counter;
  held := FOUND;
  -- A row that a renewal or a fenced transaction locks expires instead.
  UPDATE tower_lock.lease SET until = to_timestamp(0)
    WHERE key = k AND lease = l AND until > clock_timestamp();
  RETURN held OR FOUND;
END $$;

-- Notifies the processes that wait for a key.
CREATE OR REPLACE FUNCTION tower_lock.notify(k text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify(channel, 'r ' || k) FROM tower_lock.watcher
    WHERE key = k AND seen > clock_timestamp() - interval '30 s';
END $$;

-- Releases a lease, or all leases of the key if `l` is NULL. Returns whether one held the key.
CREATE OR REPLACE FUNCTION tower_lock.release_one(k text, l text) RETURNS bool LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  PERFORM tower_lock.enter(k, false, true);
  IF NOT tower_lock.finish(k, l) THEN RETURN false; END IF;
  PERFORM tower_lock.notify(k);
  RETURN true;
END $$;

-- Releases that arrived together. Returns one row for each, with its ordinal. None waits, so that no two sessions wait for each
-- other: `was_held` is NULL if the mutex was taken, or if a renewal or a fenced transaction locks the row.
CREATE OR REPLACE FUNCTION tower_lock.release(ks text[], ls text[], OUT n bigint, OUT was_held bool)
RETURNS SETOF record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v text;
  entered bool[];
  released bigint[];
BEGIN
  v := tower_lock.prepare(false);
  entered := ARRAY(SELECT tower_lock.try_enter(u.key) FROM unnest(ks) WITH ORDINALITY u(key, n) ORDER BY u.n);
  WITH e AS MATERIALIZED (SELECT x.key, x.counter, u.n
      FROM unnest(ks, ls, entered) WITH ORDINALITY u(key, lease, entered, n)
      JOIN tower_lock.lease x USING (key, lease)
      WHERE u.entered AND x.until > clock_timestamp() FOR UPDATE OF x SKIP LOCKED),
    d AS (DELETE FROM tower_lock.lease x USING e WHERE x.key = e.key AND x.counter = e.counter RETURNING e.n)
  SELECT coalesce(array_agg(d.n), '{}') INTO released FROM d;
  IF EXISTS (SELECT FROM tower_lock.watcher) THEN
    PERFORM tower_lock.notify(ks[u.n]) FROM unnest(released) u(n);
  END IF;
  RETURN QUERY SELECT u.n, true FROM unnest(released) u(n);
  IF cardinality(released) = cardinality(ks) THEN RETURN; END IF;
  RETURN QUERY SELECT u.n, CASE WHEN u.entered AND NOT EXISTS (SELECT FROM tower_lock.lease x
      WHERE x.key = u.key AND x.lease = u.lease AND x.until > clock_timestamp()) THEN false END
    FROM unnest(ks, ls, entered) WITH ORDINALITY u(key, lease, entered, n) WHERE u.n <> ALL (released);
END $$;

-- Releases a lease if other managers wait for the key, and keeps it under `n` more counters otherwise. Returns the last
-- counter, the number of those managers, or neither if the lease did not hold the key.
CREATE OR REPLACE FUNCTION tower_lock.release_or_keep(k text, l text, own text, ttl bigint, n int,
  OUT kept bigint, OUT watchers int) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  PERFORM tower_lock.enter(k, false, true);
  SELECT count(*) INTO watchers FROM tower_lock.watcher
    WHERE key = k AND manager <> own AND seen > clock_timestamp() - interval '30 s';
  IF watchers > 0 THEN
    IF tower_lock.finish(k, l) THEN PERFORM tower_lock.notify(k); ELSE watchers := NULL; END IF;
    RETURN;
  END IF;
  watchers := NULL;
  UPDATE tower_lock.lease SET until = greatest(until, clock_timestamp() + ttl * interval '1 ms'),
    last = tower_lock.draw(n) WHERE key = k AND lease = l AND until > clock_timestamp() RETURNING last INTO kept;
END $$;

-- Makes a lease shared. Returns its counter, or NULL if it did not hold the key.
CREATE OR REPLACE FUNCTION tower_lock.downgrade(k text, l text, ttl bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE counter bigint;
BEGIN
  PERFORM tower_lock.enter(k, false, true);
  UPDATE tower_lock.lease SET mode = 's', until = greatest(until, clock_timestamp() + ttl * interval '1 ms'),
    last = tower_lock.draw(1) WHERE key = k AND lease = l AND until > clock_timestamp() RETURNING last INTO counter;
  IF FOUND THEN PERFORM tower_lock.notify(k); END IF;
  RETURN counter;
END $$;

-- Renews leases. Returns the ordinals of those that hold their keys. Two calls have rows in common only if one
-- repeats the other: a lease has one manager, and a manager one lease of a key.
CREATE OR REPLACE FUNCTION tower_lock.renew(ks text[], ls text[], ms text[], ttls bigint[]) RETURNS SETOF bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
  SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '400', true);
  UPDATE tower_lock.lease t SET until = greatest(t.until, clock_timestamp() + i.ttl * interval '1 ms')
    FROM (SELECT * FROM unnest(ks, ls, ms, ttls) WITH ORDINALITY u(key, lease, mode, ttl, n) ORDER BY key COLLATE "C", lease COLLATE "C") i
    WHERE t.key = i.key AND t.lease = i.lease AND t.mode = i.mode AND t.until > clock_timestamp() RETURNING i.n $$;

-- Registers a manager that waits for a key. Under the mutex: a release before it is visible, one after it notifies.
CREATE OR REPLACE FUNCTION tower_lock.watch(k text, own text, at text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  PERFORM tower_lock.enter(k, false, true);
  INSERT INTO tower_lock.watcher VALUES (k, own, at, clock_timestamp())
    ON CONFLICT (key, manager) DO UPDATE SET seen = clock_timestamp(), channel = EXCLUDED.channel;
END $$;

CREATE OR REPLACE FUNCTION tower_lock.unwatch(k text, own text, at text) RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  SELECT set_config('synchronous_commit', 'off', true);
  DELETE FROM tower_lock.watcher WHERE key = k AND manager = own AND channel = at $$;

-- Removes what ended processes left.
CREATE OR REPLACE FUNCTION tower_lock.sweep() RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
  SELECT set_config('synchronous_commit', 'off', true);
  DELETE FROM tower_lock.lease WHERE ctid = ANY (ARRAY(SELECT ctid FROM tower_lock.lease
    WHERE until < clock_timestamp() - interval '1 min' LIMIT 1000 FOR UPDATE SKIP LOCKED));
  DELETE FROM tower_lock.watcher WHERE ctid = ANY (ARRAY(SELECT ctid FROM tower_lock.watcher
    WHERE seen < clock_timestamp() - interval '1 min' LIMIT 1000 FOR UPDATE SKIP LOCKED)) $$;

-- The first statement of a transaction under a lock. It fails with TL001 if no lease has one of these tokens any more.
-- Until the transaction ends, no other lease can hold the keys, and renewals pass.
CREATE OR REPLACE FUNCTION tower_lock.fence(keys text[], tokens bigint[]) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE v text; k text; token bigint; shared bool; free bool;
BEGIN
  IF coalesce(cardinality(keys), 0) = 0 OR cardinality(keys) IS DISTINCT FROM cardinality(tokens) THEN
    RAISE EXCEPTION 'a fence needs a key and a token for each' USING ERRCODE = 'TL001';
  END IF;
  IF current_setting('idle_in_transaction_session_timeout') = '0' THEN
    v := set_config('idle_in_transaction_session_timeout', '10s', true);
  END IF;
  IF cardinality(keys) > 1 THEN -- transactions of several keys wait in one order
    SELECT array_agg(u.k ORDER BY u.k COLLATE "C"), array_agg(u.t ORDER BY u.k COLLATE "C") INTO keys, tokens
      FROM unnest(keys, tokens) u(k, t);
  END IF;
  FOR i IN 1..cardinality(keys) LOOP
    k := keys[i];
    token := tokens[i];
    -- All rows whose counters include the token: after downgrades, shared leases can have the same ones.
    SELECT bool_or(r.shared) INTO shared FROM (SELECT mode = 's' OR lease LIKE 'p%' AS shared FROM tower_lock.lease
      WHERE key = k AND counter <= token / 256 AND token / 256 <= last AND until > to_timestamp(0) FOR KEY SHARE) r;
    IF shared IS NULL THEN RAISE EXCEPTION 'the lock of this transaction is lost' USING ERRCODE = 'TL001'; END IF;
    -- The last holder of the same lease may still commit. Shared ones and permits do not wait for each other.
    IF shared THEN free := pg_try_advisory_xact_lock_shared(1953459811, hashtext(k));
    ELSE free := pg_try_advisory_xact_lock(1953459811, hashtext(k)); END IF;
    IF NOT free THEN
      IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the previous holder is still committing' USING ERRCODE = '40001';
      END IF;
      IF shared THEN v := pg_advisory_xact_lock_shared(1953459811, hashtext(k));
      ELSE v := pg_advisory_xact_lock(1953459811, hashtext(k)); END IF;
    END IF;
  END LOOP;
END $$;
-- The fence of a lock with one key.
CREATE OR REPLACE FUNCTION tower_lock.fence(k text, token bigint) RETURNS void LANGUAGE sql AS $$
  SELECT tower_lock.fence(ARRAY[k], ARRAY[token]) $$;
