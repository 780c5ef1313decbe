
-- Version 2: the queue of the processes that wait for a key, and permits. Processes of version 1 call the functions above,
-- and know neither.
--
-- A permit is a lease of the mode x whose name has a p before its id. A process of version 1 so finds the key held, as does
-- every lease of another mode.
--
-- The mode of a place is x, s, p (a permit, one of at most `places`), o for the processes of version 1 that wait for the
-- key, or t for their turn. A `channel` is that of a process that listens, whose session shares an advisory lock of its
-- name. Empty after a crash: the waiters enter again.
CREATE UNLOGGED TABLE IF NOT EXISTS tower_lock.waiter (
  key text COLLATE "C" NOT NULL, place bigint NOT NULL, lease text COLLATE "C" NOT NULL, mode text COLLATE "C" NOT NULL,
  places int, channel text COLLATE "C", seen timestamptz NOT NULL, PRIMARY KEY (key, place), UNIQUE (key, lease))
  WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);

-- Notifies a channel. While a listener in an open transaction fills the queue of notifications, does nothing: a notification
-- would fail the commit, and with it a release. Its waiters attempt at intervals anyway.
CREATE OR REPLACE FUNCTION tower_lock.notify_channel(at text, message text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF pg_notification_queue_usage() < 0.9 THEN PERFORM pg_notify(at, message); END IF;
END $$;

-- Notifies the processes that wait for a key, as `notify`.
CREATE OR REPLACE FUNCTION tower_lock.notify_2(k text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM tower_lock.notify_channel(channel, 'r ' || k) FROM tower_lock.watcher
    WHERE key = k AND seen > clock_timestamp() - interval '30 s';
END $$;

-- Returns when the key may have room beside the leases that end after `since`, or NULL if it has room.
CREATE OR REPLACE FUNCTION tower_lock.full_until(k text, m text, most int, since timestamptz) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE n int; alike bool; soonest timestamptz; latest timestamptz;
BEGIN
  SELECT count(*), bool_and(CASE m WHEN 's' THEN mode = 's' WHEN 'p' THEN lease LIKE 'p%' ELSE false END),
    min(until), max(until) INTO n, alike, soonest, latest FROM tower_lock.lease WHERE key = k AND until > since;
  RETURN CASE WHEN n = 0 THEN NULL WHEN NOT alike THEN latest WHEN m = 'p' AND n >= most THEN soonest END;
END $$;

-- Returns the channels of the processes of version 1 that wait for a key.
CREATE OR REPLACE FUNCTION tower_lock.outside(k text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY SELECT channel FROM tower_lock.watcher
    WHERE key = k AND channel NOT LIKE 'tower\_lock\_queue\_%' AND seen > clock_timestamp() - interval '30 s';
END $$;

-- Transfers a key to the first waiters that fit, for 1.5 s each, and grants it to `own` for its TTL. Returns the number of
-- transfers, the counter of `own`, and the end of the turn of version 1. `blocked`: the caller may not notify a waiter.
CREATE OR REPLACE FUNCTION tower_lock.serve(k text, own text, ttl bigint, may_notify bool,
  OUT served int, OUT counter bigint, OUT turn timestamptz, OUT blocked bool) LANGUAGE plpgsql AS $$
DECLARE w record; n bigint;
BEGIN
  served := 0;
  DELETE FROM tower_lock.waiter WHERE key = k AND seen < clock_timestamp() - interval '3 s';
  FOR w IN SELECT * FROM tower_lock.waiter WHERE key = k ORDER BY place LOOP
    IF w.lease = '~' THEN
      IF w.mode = 'o' AND EXISTS (SELECT FROM tower_lock.outside(k)) THEN
        EXIT WHEN EXISTS (SELECT FROM tower_lock.lease WHERE key = k);
        blocked := NOT may_notify;
        EXIT WHEN blocked;
        turn := clock_timestamp() + interval '50 ms';
        UPDATE tower_lock.waiter SET mode = 't', seen = turn WHERE key = k AND place = w.place;
        PERFORM tower_lock.notify_channel(o, 'r ' || k) FROM tower_lock.outside(k) o;
        EXIT;
      END IF;
      -- One further ahead is from before a step back of the clock.
      IF w.mode = 't' AND w.seen - clock_timestamp() BETWEEN interval '0' AND interval '50 ms'
        AND NOT EXISTS (SELECT FROM tower_lock.lease WHERE key = k) THEN
        turn := w.seen;
        EXIT;
      END IF;
      DELETE FROM tower_lock.waiter WHERE key = k AND place = w.place;
      CONTINUE;
    END IF;
    EXIT WHEN tower_lock.full_until(k, w.mode, w.places, '-infinity') IS NOT NULL;
    IF w.lease IS DISTINCT FROM own THEN
      -- No session listens for a process that has ended or connects again. It keeps its place.
      CONTINUE WHEN pg_try_advisory_xact_lock(1953459814, hashtext(w.channel));
      blocked := NOT may_notify;
      EXIT WHEN blocked;
    END IF;
    DELETE FROM tower_lock.waiter WHERE key = k AND place = w.place;
    n := tower_lock.draw(1);
    INSERT INTO tower_lock.lease VALUES (k, n, n, CASE w.mode WHEN 'p' THEN 'p' || w.lease ELSE w.lease END,
      CASE w.mode WHEN 's' THEN 's' ELSE 'x' END,
      clock_timestamp() + CASE WHEN w.lease = own THEN ttl ELSE 1500 END * interval '1 ms');
    IF w.lease = own THEN
      counter := n;
    ELSE
      served := served + 1;
      PERFORM tower_lock.notify_channel(w.channel, 't ' || w.lease || ' ' || k) WHERE w.channel IS NOT NULL;
    END IF;
    EXIT WHEN w.mode = 'x';
  END LOOP;
  -- The processes of version 1 have one turn in each round of the queue.
  IF (served > 0 OR counter IS NOT NULL) AND EXISTS (SELECT FROM tower_lock.outside(k)) THEN
    INSERT INTO tower_lock.waiter SELECT k, coalesce(max(place), 0) + 1, '~', 'o', NULL, NULL,
      clock_timestamp() + interval '60 s' FROM tower_lock.waiter WHERE key = k ON CONFLICT DO NOTHING;
  END IF;
END $$;

-- Serves the waiters of a key after a lease ended or changed. Returns t if the free key was transferred, o in a turn of
-- version 1, otherwise r. If no waiter is served, notifies the processes that watch the key.
CREATE OR REPLACE FUNCTION tower_lock.pass(k text, ended bool) RETURNS text LANGUAGE plpgsql AS $$
DECLARE s record; was_free bool;
BEGIN
  IF EXISTS (SELECT FROM tower_lock.waiter WHERE key = k) THEN
    PERFORM tower_lock.settle(k);
    was_free := NOT EXISTS (SELECT FROM tower_lock.lease WHERE key = k);
    SELECT * INTO s FROM tower_lock.serve(k, NULL, 0, true);
    IF s.turn IS NOT NULL THEN RETURN 'o'; END IF;
    IF s.served > 0 THEN RETURN CASE WHEN was_free THEN 't' ELSE 'r' END; END IF;
    IF NOT was_free AND EXISTS (SELECT FROM tower_lock.waiter WHERE key = k) THEN
      -- A fenced transaction is open. The first waiter attempts until its end.
      PERFORM tower_lock.notify_channel(w.channel, 'r ' || k) FROM (SELECT channel FROM tower_lock.waiter
          WHERE key = k ORDER BY place LIMIT 1) w
        WHERE w.channel IS NOT NULL
          AND EXISTS (SELECT FROM tower_lock.lease WHERE key = k AND until <= clock_timestamp());
      RETURN 'r';
    END IF;
  END IF;
  IF ended THEN PERFORM tower_lock.notify_2(k); END IF;
  RETURN 'r';
END $$;

-- Grants a key, confirms a transfer, or enters the queue if the lease `waits`. Returns the counter of a grant, or the time
-- until an attempt can succeed and the number of places. All are NULL if the command has to be sent alone.
CREATE OR REPLACE FUNCTION tower_lock.contend(k text, l text, m text, most int, ttl bigint, waits bool, at text,
  not_after float8, durable bool, may_wait bool, OUT counter bigint, OUT ttl_ms bigint, OUT queued int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
  name text := CASE m WHEN 'p' THEN 'p' || l ELSE l END;
  kind text := CASE m WHEN 's' THEN 's' ELSE 'x' END;
  t timestamptz;
  s record;
BEGIN
  IF NOT waits THEN
    -- An attempt at a held key only reads: it writes no WAL.
    t := tower_lock.full_until(k, m, most, clock_timestamp());
    IF t IS NOT NULL AND NOT EXISTS (SELECT FROM tower_lock.lease
      WHERE key = k AND lease = name AND until > clock_timestamp()) THEN
      ttl_ms := greatest(20, ceil(extract(epoch FROM t - clock_timestamp())::numeric * 1000));
      RETURN;
    END IF;
  END IF;
  IF NOT tower_lock.enter(k, durable, may_wait) THEN RETURN; END IF;
  PERFORM tower_lock.draw(0); -- prepares the sequence, which may take a while
  PERFORM tower_lock.is_timely(not_after);
  IF EXISTS (SELECT FROM tower_lock.lease WHERE key = k) OR EXISTS (SELECT FROM tower_lock.waiter WHERE key = k) THEN
    PERFORM tower_lock.settle(k);
    -- A repeat, or the confirmation of a transfer, whose counter no token has yet. The clock is read after every wait.
    UPDATE tower_lock.lease SET until = greatest(CASE WHEN m <> 'x' THEN until END, clock_timestamp() + ttl * interval '1 ms'),
      last = CASE m WHEN 'x' THEN tower_lock.draw(1) ELSE last END
      WHERE key = k AND lease = name AND mode = kind AND until > clock_timestamp() RETURNING last INTO counter;
    IF FOUND THEN RETURN; END IF;
    IF waits THEN
      -- A transfer to this lease in the mode that it had before.
      DELETE FROM tower_lock.lease WHERE key = k AND lease IN (l, 'p' || l);
    END IF;
    t := tower_lock.full_until(k, m, most, '-infinity');
    IF waits AND (t IS NOT NULL OR EXISTS (SELECT FROM tower_lock.waiter WHERE key = k)) THEN
      INSERT INTO tower_lock.waiter SELECT k, coalesce(max(place), 0) + 1, l, m, most, at, clock_timestamp()
        FROM tower_lock.waiter WHERE key = k
        ON CONFLICT (key, lease) DO UPDATE SET seen = clock_timestamp(), mode = EXCLUDED.mode,
          places = EXCLUDED.places, channel = EXCLUDED.channel;
      SELECT * INTO s FROM tower_lock.serve(k, l, ttl, may_wait);
      counter := s.counter;
      IF counter IS NOT NULL OR s.blocked THEN RETURN; END IF;
      -- Notifications of a commit that waits for the disk would hold up others.
      IF may_wait THEN PERFORM set_config('synchronous_commit', 'off', true); END IF;
      SELECT count(*) INTO queued FROM tower_lock.waiter WHERE key = k AND lease <> '~';
      t := coalesce(s.turn, tower_lock.full_until(k, m, most, '-infinity'));
    END IF;
    IF t IS NOT NULL OR queued IS NOT NULL OR m <> 'x' AND EXISTS (SELECT FROM tower_lock.waiter
      WHERE key = k AND seen > clock_timestamp() - interval '3 s' AND (m = 'p' OR mode <> 's')) THEN
      t := coalesce(t, (SELECT min(until) FROM tower_lock.lease WHERE key = k), clock_timestamp());
      ttl_ms := greatest(20, ceil(extract(epoch FROM t - clock_timestamp())::numeric * 1000));
      RETURN;
    END IF;
  END IF;
  counter := nextval('tower_lock.counter'); -- under the mutex, so a later grant has a larger counter
  INSERT INTO tower_lock.lease VALUES (k, counter, counter, name, kind, clock_timestamp() + ttl * interval '1 ms');
END $$;

-- Ends a lease as `finish`, or a permit.
CREATE OR REPLACE FUNCTION tower_lock.finish_2(k text, l text) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
  IF l IS NULL THEN RETURN tower_lock.finish(k, l); END IF;
  WITH e AS MATERIALIZED (SELECT counter FROM tower_lock.lease
    WHERE key = k AND lease IN (l, 'p' || l) AND until > clock_timestamp() FOR UPDATE SKIP LOCKED)
  DELETE FROM tower_lock.lease x USING e WHERE x.key = k AND x.counter = e.counter;
  IF FOUND THEN RETURN true; END IF;
  -- A row that a renewal or a fenced transaction locks expires instead.
  UPDATE tower_lock.lease SET until = to_timestamp(0)
    WHERE key = k AND lease IN (l, 'p' || l) AND until > clock_timestamp();
  RETURN FOUND;
END $$;

-- Removes the place of a lease, and serves those behind it.
CREATE OR REPLACE FUNCTION tower_lock.leave(k text, l text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM tower_lock.waiter WHERE key = k AND lease = l;
  IF FOUND THEN PERFORM tower_lock.pass(k, false); END IF;
  RETURN 'n';
END $$;

-- Releases a lease, or all leases of the key if `l` is NULL. Returns as `pass`, and n if none held the key: if the lease
-- `leaves`, it may have a place in the queue instead.
CREATE OR REPLACE FUNCTION tower_lock.release_one_2(k text, l text, leaves bool) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  PERFORM tower_lock.enter(k, false, true);
  IF tower_lock.finish_2(k, l) THEN RETURN tower_lock.pass(k, true); END IF;
  RETURN CASE WHEN leaves THEN tower_lock.leave(k, l) ELSE 'n' END;
END $$;

-- Releases that arrived together, as `release`. `outcome` is that of `release_one_2`, or NULL.
CREATE OR REPLACE FUNCTION tower_lock.release_2(ks text[], ls text[], leaves bool[], OUT n bigint, OUT outcome text)
RETURNS SETOF record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  v text;
  entered bool[];
  released bigint[];
  is_alone bool;
BEGIN
  v := tower_lock.prepare(false);
  entered := ARRAY(SELECT tower_lock.try_enter(u.key) FROM unnest(ks) WITH ORDINALITY u(key, n) ORDER BY u.n);
  WITH e AS MATERIALIZED (SELECT x.at, u.n FROM unnest(ks, ls, entered) WITH ORDINALITY u(key, lease, entered, n),
      LATERAL (SELECT ctid AS at FROM tower_lock.lease WHERE key = u.key AND lease IN (u.lease, 'p' || u.lease)
        AND until > clock_timestamp() FOR UPDATE SKIP LOCKED) x WHERE u.entered),
    d AS (DELETE FROM tower_lock.lease WHERE ctid = ANY (ARRAY(SELECT at FROM e)) RETURNING ctid AS at)
  -- A lease that was granted while it had a place can have two rows. One that was renewed meanwhile stays.
  SELECT coalesce(array_agg(DISTINCT e.n), '{}') INTO released FROM e JOIN d USING (at);
  is_alone := NOT EXISTS (SELECT FROM tower_lock.waiter) AND NOT EXISTS (SELECT FROM tower_lock.watcher);
  RETURN QUERY SELECT u.n, CASE WHEN is_alone THEN 'r'
    WHEN EXISTS (SELECT FROM tower_lock.waiter WHERE key = ks[u.n])
      OR EXISTS (SELECT FROM tower_lock.watcher WHERE key = ks[u.n]) THEN tower_lock.pass(ks[u.n], true)
    ELSE 'r' END FROM unnest(released) u(n);
  IF cardinality(released) = cardinality(ks) THEN RETURN; END IF;
  RETURN QUERY SELECT u.n, CASE WHEN u.entered AND NOT EXISTS (SELECT FROM tower_lock.lease x WHERE x.key = u.key
      AND x.lease IN (u.lease, 'p' || u.lease) AND x.until > clock_timestamp())
      THEN CASE WHEN u.leaves THEN tower_lock.leave(u.key, u.lease) ELSE 'n' END END
    FROM unnest(ks, ls, leaves, entered) WITH ORDINALITY u(key, lease, leaves, entered, n) WHERE u.n <> ALL (released);
END $$;

-- Releases a lease if other managers wait for the key, and keeps it under `n` more counters otherwise. After a release,
-- `following` enters the queue. Returns the last counter, or the number of those managers and an outcome of `pass`, or
-- neither if the lease did not hold the key.
CREATE OR REPLACE FUNCTION tower_lock.release_or_keep_2(k text, l text, own text, ttl bigint, n int, following text,
  at text, OUT kept bigint, OUT others int, OUT outcome text) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  PERFORM tower_lock.enter(k, false, true);
  SELECT greatest(count(*), (SELECT count(*) FROM tower_lock.waiter
      WHERE key = k AND seen > clock_timestamp() - interval '3 s')) INTO others
    FROM tower_lock.watcher WHERE key = k AND manager <> own AND seen > clock_timestamp() - interval '30 s';
  IF others = 0 THEN
    UPDATE tower_lock.lease SET until = greatest(until, clock_timestamp() + ttl * interval '1 ms'),
      last = tower_lock.draw(n) WHERE key = k AND lease = l AND until > clock_timestamp() RETURNING last INTO kept;
  ELSIF tower_lock.finish_2(k, l) THEN
    outcome := tower_lock.pass(k, true);
    INSERT INTO tower_lock.waiter SELECT k, coalesce(max(place), 0) + 1, following, 'x', NULL, at, clock_timestamp()
      FROM tower_lock.waiter WHERE key = k HAVING following IS NOT NULL ON CONFLICT DO NOTHING;
  END IF;
END $$;

-- Makes a lease shared, as `downgrade`, and serves the waiters that may share it. After a repeat, the counters of the lease
-- can include those of leases that it is shared with. Their tokens then pass the fence while this lease holds the key, and no
-- exclusive lease has held it since theirs.
CREATE OR REPLACE FUNCTION tower_lock.downgrade_2(k text, l text, ttl bigint) RETURNS bigint LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE counter bigint;
BEGIN
  PERFORM tower_lock.enter(k, false, true);
  UPDATE tower_lock.lease SET mode = 's', until = greatest(until, clock_timestamp() + ttl * interval '1 ms'),
    last = tower_lock.draw(1) WHERE key = k AND lease = l AND until > clock_timestamp() RETURNING last INTO counter;
  IF FOUND THEN PERFORM tower_lock.pass(k, true); END IF;
  RETURN counter;
END $$;

-- Returns whether a lease waits that is not shared.
CREATE OR REPLACE FUNCTION tower_lock.is_wanted(k text) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
  RETURN EXISTS (SELECT FROM tower_lock.waiter
    WHERE key = k AND mode <> 's' AND seen > clock_timestamp() - interval '3 s');
END $$;

-- Renews leases, as `renew`. `wanted`: the lease is shared, and one that is not waits.
CREATE OR REPLACE FUNCTION tower_lock.renew_2(ks text[], ls text[], ms text[], ttls bigint[], OUT n bigint, OUT wanted bool)
RETURNS SETOF record LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  SELECT i.n, CASE WHEN ms[i.n] = 's' THEN tower_lock.is_wanted(ks[i.n]) ELSE false END
    FROM tower_lock.renew(ks, ls, ms, ttls) i(n) $$;

CREATE OR REPLACE FUNCTION tower_lock.sweep_2() RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  SELECT tower_lock.sweep();
  DELETE FROM tower_lock.waiter WHERE ctid = ANY (ARRAY(SELECT ctid FROM tower_lock.waiter
    WHERE seen < clock_timestamp() - interval '1 min' LIMIT 1000 FOR UPDATE SKIP LOCKED)) $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tower_lock FROM PUBLIC;
INSERT INTO tower_lock.version VALUES (1), (2) ON CONFLICT DO NOTHING;
COMMIT;
