
'use strict';
// `EventSource` and `fetch` resolve paths against the page, whose path may lack a slash at its end.
const base = location.pathname.replace(/\/+$/, '') + '/api/v1/';
const $ = id => document.getElementById(id);
const make = (name, text, cls) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (cls) element.className = cls;
  return element;
};
const set = (element, text) => { if (element.textContent !== text) element.textContent = text; };

// Control, direction and invisible characters are shown as escapes, and a backslash as two.
const shown = key => key.replace(/\\|[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu, c => {
  if (c === '\\') return '\\\\';
  const hex = c.codePointAt(0).toString(16);
  return hex.length > 4 ? `\\u{${hex}}` : '\\u' + hex.padStart(4, '0');
});
// The key whose shown text an operator pasted.
const unshown = text => text.replace(/\\\\|\\u([0-9a-f]{4})|\\u\{([0-9a-f]{5,6})\}/g, (all, short, long) => {
  const code = parseInt(short || long, 16);
  return !(short || long) ? '\\' : code > 0x10ffff ? all : String.fromCodePoint(code);
});
const whole = new Intl.NumberFormat('en-US');
const number = n => n == null ? '–' : n >= 100 || Number.isInteger(n) ? whole.format(Math.round(n)) : n.toPrecision(2);
const span = ms => {
  if (ms == null) return '–';
  if (ms < 1) return ms === 0 ? '0 ms' : `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${ms < 10 ? +ms.toFixed(1) : Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, '0')} s`;
  const h = Math.floor(s / 3600);
  return h < 48 ? `${h} h ${String(Math.floor(s / 60 % 60)).padStart(2, '0')} min` : `${Math.floor(h / 24)} d ${h % 24} h`;
};
const time = ms => new Date(ms).toLocaleTimeString([], { hour12: false });
const bdi = key => make('bdi', shown(key));
const words = name => name.replaceAll('_', ' ');
const counts = map => Object.entries(map || {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1])
  .map(([name, n]) => `${words(name)} ${whole.format(n)}`).join(', ');
const sum = map => Object.values(map || {}).reduce((a, b) => a + b, 0);

let summary = null, frame = null, source = null, arrived = 0, refused = 0, lostBefore = null, followed = null;

// ---- totals ----
const tiles = new Map();
function tile(name, value, note, alarm) {
  let it = tiles.get(name);
  if (!it) {
    it = { box: make('div'), value: make('dd'), note: make('dd') };
    it.box.append(make('dt', name), it.value, it.note);
    $('totals').append(it.box);
    tiles.set(name, it);
  }
  set(it.value, value);
  set(it.note, note || '');
  it.box.className = alarm ? 'alarm' : '';
}
function totals() {
  const f = frame, r = f.rates || {}, limit = summary && summary.options.max_waiters;
  const modes = f.shared + f.permits > 0 ? `, ${number(f.exclusive)} exclusive, ${number(f.shared)} shared, ${number(f.permits)} permits` : '';
  tile('Held', number(f.held), 'keys, by this process' + modes);
  tile('Waiting', number(f.waiting), limit ? `oldest ${span(f.oldest_wait_ms)}, at most ${number(limit)}` : '', limit && f.waiting > limit * .8);
  tile('Oldest hold', span(f.oldest_hold_ms), 'of a lock held now');
  if (f.rates) {
    tile('Grants', `${number(r.grants)}/s`, `${number(r.handoffs)}/s by hand-off`);
    tile('Wait, p99', span(f.wait.p99), `p50 ${span(f.wait.p50)}, max ${span(f.wait.max)}`);
    tile('Hold, p99', span(f.hold.p99), `p50 ${span(f.hold.p50)}, max ${span(f.hold.max)}`);
    tile('Rejected', `${number(r.rejected)}/s`, counts(f.rejected) || 'none since the start', r.rejected > 0);
    tile('Lost', number(sum(f.lost)), counts(f.lost) || 'none since the start', r.lost > 0);
  }
  tile('Unreleased', number(f.unreleased), 'releases without a reply yet', f.unreleased > 100);
  if (f.renewals) tile('Renewals failed', number(f.renewals.failed), `${number(f.renewals.ok)} ok, ${number(f.renewals.not_held)} not held`, f.rates.renewals_failed > 0);
}
function losses() {
  const lost = sum(frame.lost);
  if (lostBefore !== null && lost > lostBefore) {
    const n = lost - lostBefore;
    set($('losses'), `${n} ${n === 1 ? 'lock was' : 'locks were'} lost at ${time(frame.at)}. Since the start: ${counts(frame.lost)}.`);
  }
  lostBefore = lost;
}

// ---- backend ----
function backend() {
  const servers = frame.servers || [], incidents = frame.incidents || [];
  $('backend').hidden = servers.length + incidents.length === 0;
  const line = it => {
    const li = make('li');
    li.append(make('span', it.up ? 'up' : 'DOWN', it.up ? 'up' : 'bad'), ` ${it.server} · ${it.part}` + (it.since ? ` since ${time(it.since)}` : '') + (it.incidents ? ` · ${number(it.incidents)} incident${it.incidents === 1 ? '' : 's'}` : '') + (it.cause ? ` · ${shown(it.cause)}` : ''));
    return li;
  };
  $('servers').replaceChildren(...servers.map(line));
  $('incidents').replaceChildren(...lines(incidents));
  // A frame has the last 8.
  $('earlier').hidden = incidents.length < 8;
}
const lines = incidents => incidents.slice().reverse().map(it => make('li', `${time(it.at)} ${shown(it.text)}`));
async function earlier() {
  const all = $('earlier').open && await load('incidents');
  if (all) $('all').replaceChildren(...lines(all));
}

// ---- plots ----
const PLOTS = [
  ['Grants', '/s', [['all', 'grants'], ['by hand-off', 'handoffs']]],
  ['Wait', 'ms', [['p99', 'wait_p99'], ['p50', 'wait_p50']]],
  ['Hold', 'ms', [['p99', 'hold_p99'], ['p50', 'hold_p50']]],
  ['Waiting acquires', '', [['now', 'waiting']]],
  ['Held keys', '', [['now', 'held']]],
  ['Rejected and lost', '/s', [['rejected', 'rejected'], ['lost', 'lost']]],
];
const W = 600, H = 72;
let past = { at: [] }, plots = [], range = '15m';
const inUnit = (value, unit) => unit === 'ms' ? span(value) : number(value) + unit;
// The top of an axis: 1, 2 or 5 times a power of ten.
function nice(max) {
  const power = 10 ** Math.floor(Math.log10(max));
  return [1, 2, 5, 10].map(n => n * power).find(n => n >= max) || max;
}
function buildPlots() {
  const NS = 'http://www.w3.org/2000/svg';
  plots = PLOTS.map(([title, unit, series]) => {
    const figure = make('figure'), caption = make('figcaption'), svg = document.createElementNS(NS, 'svg');
    svg.setAttribute('viewBox', `0 0 ${W} ${H}`);
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.setAttribute('role', 'img');
    const top = make('div', undefined, 'axis'), max = make('span'), axis = make('div', undefined, 'axis'), from = make('span');
    caption.append(make('b', title));
    const lines = series.map(([label, name], at) => {
      const path = document.createElementNS(NS, 'path'), value = make('span');
      path.setAttribute('class', 's' + at);
      svg.prepend(path);
      const legend = make('span'), mark = make('i', undefined, 's' + at);
      legend.append(mark, label + ' ', value);
      caption.append(legend);
      return { path, value, name, label };
    });
    top.append(max);
    axis.append(from, make('span', 'now'));
    figure.append(caption, top, svg, axis);
    $('plots').append(figure);
    return { title, unit, lines, svg, max, from };
  });
}
function draw() {
  const step = range === '15m' ? 1e3 : 60e3, end = frame ? frame.at : Date.now(), at = past.at;
  // A young history is not squeezed into a corner.
  const minutes = Math.ceil((end - (at[0] ?? end)) / 60e3), [least, all] = range === '15m' ? [1, 15] : [60, 1440];
  const shownMinutes = Math.min(Math.max(minutes, least), all), length = shownMinutes * 60e3;
  for (const plot of plots) {
    let most = 0;
    for (const { name } of plot.lines) for (const v of past[name] || []) if (v > most) most = v;
    const top = most > 0 ? nice(most) : 1;
    for (const line of plot.lines) {
      const values = past[line.name] || [];
      let d = '', open = false, before = 0;
      for (let i = 0; i < values.length; i++) {
        const v = values[i], x = W * (1 - (end - at[i]) / length);
        if (v == null || x < 0) { open = false; continue; }
        const y = H * (1 - v / top);
        // A gap in time is a gap in the line. A point alone is a dot.
        d += open && at[i] - before < step * 3 ? `L${x.toFixed(1)} ${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}h.1`;
        open = true;
        before = at[i];
      }
      line.path.setAttribute('d', d);
      line.last = values.length ? values[values.length - 1] : null;
      set(line.value, line.last == null ? '–' : inUnit(line.last, plot.unit));
    }
    set(plot.max, inUnit(top, plot.unit));
    set(plot.from, shownMinutes < 120 ? `${shownMinutes} min ago` : `${Math.round(shownMinutes / 60)} h ago`);
    plot.svg.setAttribute('aria-label', `${plot.title}: ` + plot.lines.map(l => `${l.label} ${l.value.textContent}`).join(', ') + `; axis from 0 to ${plot.max.textContent}`);
  }
}
function remember(f) {
  if (range !== '15m' || !past.at) return;
  const r = f.rates || {}, w = f.wait || {}, h = f.hold || {};
  // A page that opens receives the figures of the last second, which the history has already.
  if (f.counted_at <= past.at[past.at.length - 1]) return;
  const now = { at: f.counted_at, held: f.held, waiting: f.waiting, grants: r.grants, handoffs: r.handoffs, rejected: r.rejected, lost: r.lost, wait_p50: w.p50, wait_p99: w.p99, hold_p50: h.p50, hold_p99: h.p99 };
  for (const name of Object.keys(now)) {
    const column = past[name] || (past[name] = []);
    column.push(now[name] ?? null);
    if (column.length > 900) column.shift();
  }
}
async function history() {
  const asked = range, reply = await load('history?range=' + asked);
  // Another range may have been selected since.
  if (asked !== range) return;
  if (reply) past = reply;
  draw();
}

// ---- tables ----
// Rows are reused by key. While the pointer or the focus is in a table, its rows keep their places.
function table(id, columns, cells) {
  const element = $(id), body = element.tBodies[0], rows = new Map();
  return list => {
    const fixed = element.matches(':hover') || element.contains(document.activeElement), keys = new Set();
    let place = body.firstElementChild;
    for (const item of list) {
      keys.add(item.key);
      let row = rows.get(item.key);
      if (!row) {
        row = { tr: make('tr'), cells: [], layer: make('small') };
        const button = make('button'), first = make('td');
        button.type = 'button';
        button.append(bdi(item.key));
        button.addEventListener('click', () => inspect(item.key));
        first.append(button, row.layer);
        row.tr.append(first);
        for (const cls of columns) {
          const td = make('td', undefined, cls);
          row.cells.push(td);
          row.tr.append(td);
        }
        rows.set(item.key, row);
        if (fixed) body.append(row.tr);
      }
      row.tr.className = '';
      set(row.layer, item.layer ? shown(item.layer) : '');
      cells(item).forEach((text, at) => set(row.cells[at], text));
      if (fixed) continue;
      if (row.tr === place) place = place.nextElementSibling;
      else body.insertBefore(row.tr, place);
    }
    for (const [key, row] of rows) {
      if (keys.has(key)) continue;
      // Without a bound, a table that keeps the focus would grow with each key.
      if (fixed && (rows.size <= 200 || row.tr.matches(':hover, :focus-within'))) row.tr.className = 'gone';
      else { row.tr.remove(); rows.delete(key); }
    }
  };
}
const NOT_HERE = { unavailable: 'backend unavailable' };
// Several owners can hold a key in the last two modes.
const held = (mode, owners) => mode == null ? '–' : mode === 'exclusive' ? mode : `${number(owners)} ${mode === 'shared' ? mode : owners === 1 ? mode : 'permits'}`;
const showKeys = table('keys', ['', 'n', 'n', 'n', 'n x', 'n x'], it => [
  held(it.mode, it.owners), number(it.waiters), it.since_ms == null ? NOT_HERE[it.held_by] || it.held_by : span(it.since_ms), span(it.left_ms), number(it.holds), it.token ?? '–',
]);
const showHot = table('hot', ['n', 'n'], it => [number(it.waits), span(it.waited_ms)]);
function list(rows, total) {
  showKeys(rows);
  const left = total - rows.length;
  set($('more'), rows.length === 0 ? 'No key is held or waited for.' : left > 0 ? `${number(left)} more keys are not listed.` : '');
}

// ---- requests ----
async function load(path, body) {
  const options = body === undefined ? {} : {
    method: 'POST', body: JSON.stringify(body),
    headers: { 'content-type': 'application/json', 'x-tower-lock': '1' },
  };
  const response = await fetch(base + path, { ...options, cache: 'no-store', credentials: 'same-origin' }).catch(() => null);
  if (!response) return body === undefined ? null : { error: 'The process is unreachable.' };
  instance(response.headers.get('x-tower-lock-instance'));
  const reply = await response.json().catch(() => ({}));
  if (response.ok) return reply;
  return body === undefined ? null : { ...reply, status: response.status, error: reply.error || `The response is ${response.status}.` };
}
function notice(id, text) {
  let li = $(id);
  if (!text) { if (li) li.remove(); return; }
  if (!li) { li = make('li'); li.id = id; $('notices').append(li); }
  set(li, text);
}
function instance(id) {
  if (!id || !summary || id === summary.instance) return false;
  notice('n-instance', 'Another process replies now. Behind a load balancer, pin the session to one process.');
  return true;
}

// ---- one key ----
let looked = null;
async function inspect(key) {
  const reply = await load('inspect', { key });
  if (!reply.key && !$('detail').open) { set($('find-error'), `${reply.error}`); return; }
  set($('find-error'), '');
  set($('d-error'), reply.error || '');
  if (!$('detail').open) { $('f-confirm').value = $('f-reason').value = ''; set($('f-result'), ''); }
  if (reply.key) detail(reply);
  if (!$('detail').open) $('detail').showModal();
}
// Without a reply of the backend, only what this process knows.
function state(it) {
  if (it.error) return it.here ? 'held by this process, not confirmed by the backend' : 'unknown: the backend did not reply';
  if (!it.held) return 'free';
  if (it.here) return it.holders > it.here.owners ? 'held by this process and by others' : 'held by this process';
  if (it.held_by === 'kept') return 'kept by this process for its next request';
  return it.held_by === 'releasing' ? 'released by this process, not confirmed by the backend' : 'held by another process';
}
function detail(it) {
  // The owner that the operator chose among several stays chosen.
  const before = looked && looked.key === it.key && it.owners.some(other => other.owner === looked.owner) ? looked.owner : it.owner;
  // What the operator typed confirms the release of one owner.
  if (looked && looked.owner !== before) $('f-confirm').value = '';
  looked = { ...it, owner: before };
  $('d-key').replaceChildren(bdi(it.key));
  const here = it.here, rows = [['State', state(it)]];
  if (it.held) rows.push(['Mode', held(it.mode, it.holders)], [it.holders > 1 ? 'One of the owners' : 'Owner', it.owner], ['Remaining TTL', span(it.ttl_ms)], ['Holds', number(it.hold_count)]);
  if (here && here.layer) rows.push(['Layer', shown(here.layer)]);
  if (here) rows.push(['Held for', span(here.since_ms)], ['Lease left', span(here.left_ms)], ['Fencing token', here.token ?? '–']);
  rows.push(['Waiters in this process', number(it.waiters)], ['Processes in the queue', number(it.queued)]);
  $('d-list').replaceChildren(...rows.flatMap(([name, value]) => [make('dt', name), make('dd', value)]));
  owners(it);
  const long = [...shown(it.key)].length > 40;
  looked.typed = long ? it.confirm : shown(it.key);
  set($('f-what'), long ? `Type ${it.confirm}, the check digits of this key` : 'Type the key as it is shown');
  $('f-other').hidden = !!here || ['kept', 'releasing'].includes(it.held_by);
  $('force').hidden = !(it.held && summary && summary.capabilities.force_release);
}
// A button chooses the owner that a release ends.
function owners(it) {
  const row = other => {
    const tr = make('tr'), first = make('td'), button = make('button', other.owner);
    button.type = 'button';
    button.addEventListener('click', () => choose(other.owner));
    first.append(button, make('small', other.layer ? shown(other.layer) : ''));
    tr.append(first);
    for (const text of [span(other.since_ms), span(other.left_ms)]) tr.append(make('td', text, 'n'));
    for (const text of [number(other.holds), other.token]) tr.append(make('td', text, 'n x'));
    return tr;
  };
  $('owners').hidden = it.owners.length === 0;
  $('owners').tBodies[0].replaceChildren(...it.owners.map(row));
  const left = it.owners.length && it.here ? it.here.owners - it.owners.length : 0;
  set($('d-more'), left > 0 ? `${number(left)} more owners are not listed.` : '');
  choose(looked.owner);
}
function choose(owner) {
  if (looked.owner !== owner) $('f-confirm').value = '';
  looked.owner = owner;
  const lease = !looked.here && looked.mode === 'shared' ? ' It is the lease of a process, which all of its owners share.' : '';
  set($('f-owner'), looked.holders > 1 || lease ? `Only ${owner} is released.${lease}` : '');
}
async function force(event) {
  event.preventDefault();
  const result = $('f-result');
  result.className = 'bad';
  if ($('f-confirm').value !== looked.typed) { set(result, 'The typed text differs from the key.'); $('f-confirm').focus(); return; }
  const reply = await load('force-release', { key: looked.key, owner: looked.owner, reason: $('f-reason').value });
  if (reply.status === 409) set(result, 'Another owner holds the key now, or none. Nothing was released.');
  else if (reply.error) set(result, reply.error);
  else { result.className = ''; set(result, 'Released.'); }
  await inspect(looked.key);
}

// ---- the stream ----
function receive(event) {
  frame = JSON.parse(event.data);
  arrived = performance.now();
  refused = 0;
  // The page follows the process of the stream. Requests that another process answers do not change it.
  if (instance(frame.instance) && followed !== frame.instance) start();
  followed = frame.instance;
  alive();
  totals();
  losses();
  backend();
  remember(frame);
  if (range === '15m') draw();
  if ($('sort').value === 'waiters') list(frame.top, frame.shown);
  const hot = frame.hot || [];
  showHot(hot);
  set($('hot-more'), hot.length ? frame.hot_missed ? `${number(frame.hot_missed)} waits were not counted.` : '' : 'No acquire has waited in the last minutes.');
}
function connect() {
  if (source) source.close();
  source = null;
  if (document.hidden) return;
  source = new EventSource(base + 'stream');
  source.addEventListener('frame', receive);
  // The browser reconnects a stream that ended, but not one that was rejected.
  source.onerror = () => {
    if (source && source.readyState === EventSource.CLOSED) {
      refused++;
      setTimeout(connect, Math.min(1000 * 2 ** refused, 15000));
    }
  };
}
function alive() {
  const silent = performance.now() - arrived, live = $('live'), fresh = arrived > 0 && silent < 4000;
  live.className = fresh ? '' : 'off';
  set(live, fresh ? `Live · ${time(frame.at)}` : frame ? `No data for ${span(Math.round(silent / 1000) * 1000)} · last ${time(frame.at)}` : 'Connecting');
  document.body.classList.toggle('stale', !fresh && frame !== null);
}
async function start() {
  const reply = await load('summary');
  // Behind a load balancer, another process may reply than that of the stream.
  if (!reply || (followed && reply.instance !== followed)) return setTimeout(start, 2000);
  if (summary && summary.instance !== reply.instance) { lostBefore = null; summary = reply; history(); }
  summary = reply;
  const o = reply.options;
  set($('process'), `${reply.host || 'process'} · pid ${reply.pid} · instance ${reply.instance} · dashboard since ${new Date(reply.started).toLocaleString([], { hour12: false })}`);
  set($('settings'), `tower-lock ${reply.version} · wait ${span(o.wait_ms)} · watchdog timeout ${span(o.watchdog_timeout_ms)} · at most ${number(o.max_waiters_per_key)} waiters per key, ${number(o.max_waiters)} in all${reply.operator ? ` · operator ${shown(reply.operator)}` : ''}`);
  const links = [];
  for (const peer of reply.peers) {
    const url = new URL(peer.url, location.href);
    if (url.protocol !== 'http:' && url.protocol !== 'https:') continue;
    const a = make('a', peer.name);
    a.href = url.href;
    links.push(links.length ? ' · ' : 'Other processes: ', a);
  }
  $('peers').replaceChildren(...links);
  document.title = `Locks · ${reply.host || reply.instance}`;
}
async function sorted() {
  const sort = $('sort').value;
  if (sort === 'waiters') { if (frame) list(frame.top, frame.shown); return; }
  const reply = await load('holders?limit=100&sort=' + sort);
  if (reply && $('sort').value === sort) list(reply.rows, reply.held);
}

buildPlots();
draw();
start();
history();
connect();
setInterval(() => { if (!document.hidden) alive(); }, 1000);
setInterval(() => { if (!document.hidden && $('sort').value !== 'waiters') sorted(); }, 2000);
setInterval(() => { if (!document.hidden && range === '24h') history(); }, 60000);
document.addEventListener('visibilitychange', () => { connect(); if (!document.hidden) history(); });
$('sort').addEventListener('change', sorted);
$('range').addEventListener('change', event => { range = event.target.value; past = { at: [] }; history(); });
$('earlier').addEventListener('toggle', earlier);
$('find').addEventListener('submit', event => { event.preventDefault(); inspect(unshown($('key').value)); });
$('force').addEventListener('submit', force);
$('d-again').addEventListener('click', () => inspect(looked.key));
$('d-close').addEventListener('click', () => $('detail').close());
