// The live round: follows GET /v1/rounds and keeps figures, tree and charts up to date.
import {events, request} from './api.js';
import {drawDepths, drawStrip, formatMs, TimesView} from './charts.js';
import {byId, html} from './dom.js';
import {TreeView} from './tree.js';

const WINDOW_MS = 2000;  // figures are means over so much decoding
const ROUNDS = 80;       // in the strip
const TREE_EVERY_MS = matchMedia('(prefers-reduced-motion: reduce)').matches ? 1500 : 350;

const tree = new TreeView(byId('tree'));
const times = new TimesView(byId('times'));
let samples = [];       // {at, totals}: of the window
let answerTotals = null;  // before the answer that is followed
let followed = null;    // its request
let rounds = [];        // tokens of its last rounds
let waitingTree = null;
let treeDrawn = 0;
let treeDrafted = null;  // the last request whose tree had drafts
let held = false;

const put = (id, text) => { byId(id).textContent = text; };

function showState(live) {
  const loading = live.state === 'loading' ? `: ${live.phase}, ${live.percent} %` : '';
  const working = live.queue.running + live.queue.waiting > 0;
  put('state', live.state === 'running' ? (working ? 'decoding' : 'ready') : live.state + loading);
  byId('state').dataset.state = live.state;
  put('model', (live.model ?? '').split('/').at(-1));
  byId('model').title = live.model ?? '';
  put('running', live.queue.running);
  put('waiting', live.queue.waiting);
  put('cached', `${live.totals.cached_tokens.toLocaleString('en')} tokens`);
  const {used, blocks} = live.kv;
  byId('kv').value = blocks ? used / blocks : 0;
  put('kv-note', blocks ? `${used} of ${blocks} blocks` : '\u2013');
}

function difference(now, before) {
  const delta = {};
  for (const name of ['rounds', 'sequence_rounds', 'tokens', 'draft_tokens', 'accepted_tokens', 'decode_ms'])
    delta[name] = now[name] - before[name];
  delta.verb_ms = {};
  for (const [verb, ms] of Object.entries(now.verb_ms)) delta.verb_ms[verb] = ms - before.verb_ms[verb];
  return delta;
}

function showFigures(delta, plainRoundMs) {
  const speed = 1000 * delta.tokens / delta.decode_ms;
  const plain = plainRoundMs > 0 ? 1000 * delta.sequence_rounds / delta.rounds / plainRoundMs : 0;
  put('speed', speed.toFixed(0));
  put('speed-note', `${formatMs(delta.decode_ms / delta.rounds)} ms a round`);
  put('gain', plain > 0 ? (speed / plain).toFixed(2) : '\u2013');
  put('gain-note', plain > 0 ? `plain: ${plain.toFixed(0)} tokens/s` : 'plain: not known yet');
  put('per-round', (delta.tokens / delta.sequence_rounds).toFixed(2));
  put('per-round-note', `of ${(1 + delta.draft_tokens / delta.sequence_rounds).toFixed(1)} rows judged`);
  put('accepted', delta.draft_tokens ? `${(100 * delta.accepted_tokens / delta.draft_tokens).toFixed(0)}%` : '\u2013');
  put('accepted-note', `${delta.accepted_tokens} of ${delta.draft_tokens} nodes`);
}

function showTimes(delta) {
  const ms = {};
  let known = 0;
  for (const [verb, sum] of Object.entries(delta.verb_ms)) {
    ms[verb] = sum / delta.rounds;
    known += ms[verb];
  }
  ms.other = Math.max(0, delta.decode_ms / delta.rounds - known);
  times.draw(ms);
  put('time-note', `${formatMs(known + ms.other)} ms, mean of the last ${delta.rounds} rounds`);
}

function showDepths(totals) {
  const shares = [];
  for (let depth = 1; depth < totals.drafts_at_depth.length; ++depth) {
    const reached = totals.drafts_at_depth[depth] - (answerTotals.drafts_at_depth[depth] ?? 0);
    const kept = totals.accepted_at_depth[depth] - (answerTotals.accepted_at_depth[depth] ?? 0);
    shares.push(reached > 0 ? Math.min(1, kept / reached) : null);
  }
  drawDepths(byId('depths'), shares);
}

function showRounds(live) {
  rounds = rounds.concat(live.round_tokens).slice(-ROUNDS);
  drawStrip(byId('strip'), rounds);
  const mean = rounds.reduce((sum, count) => sum + count, 0) / Math.max(1, rounds.length);
  put('strip-note', `last ${rounds.length} rounds, mean ${mean.toFixed(2)}`);
}

function showTree() {
  if (held || !waitingTree) return;
  const wait = treeDrawn + TREE_EVERY_MS - performance.now();
  if (wait > 0) {
    clearTimeout(showTree.timer);
    showTree.timer = setTimeout(showTree, wait);
    return;
  }
  const round = waitingTree;
  waitingTree = null;
  // The last round of an answer often drafts nothing: the tree before it stays.
  const fresh = performance.now() - treeDrawn < 3 * TREE_EVERY_MS;
  if (round.nodes.length === 1 && treeDrafted === round.request && fresh) return;
  if (round.nodes.length > 1) treeDrafted = round.request;
  treeDrawn = performance.now();
  const nodes = round.nodes.length - 1;
  put('tree-note', nodes === 0 ? `no drafts; ${round.emitted.length} token`
    : `${nodes} nodes with their joint probability in %, ${round.emitted.length} tokens gained`);
  tree.draw(round);
}

function take(live) {
  showState(live);
  const now = performance.now();
  const before = samples.at(-1)?.totals;
  if (live.round && live.round.request !== followed) {
    followed = live.round.request;
    answerTotals = before ?? live.totals;
    rounds = [];
    samples = samples.slice(-1);
  }
  if (!before || live.totals.rounds > before.rounds) {
    samples.push({at: now, totals: live.totals});
    while (samples.length > 2 && now - samples[1].at > WINDOW_MS) samples.shift();
  }
  const delta = difference(live.totals, samples[0].totals);
  if (delta.rounds > 0 && delta.decode_ms > 0) {
    showFigures(delta, live.plain_round_ms);
    showTimes(delta);
  }
  if (live.round) {
    showRounds(live);
    showDepths(live.totals);
    waitingTree = live.round;
    showTree();
  }
}

// Listens while the page is looked at; comes back by itself when the server does.
async function listen() {
  for (;;) {
    while (document.hidden)
      await new Promise((seen) => document.addEventListener('visibilitychange', seen, {once: true}));
    const controller = new AbortController();
    const hide = () => document.hidden && controller.abort();
    document.addEventListener('visibilitychange', hide);
    try {
      const response = await request('/v1/rounds', {headers: {Accept: 'text/event-stream'}, signal: controller.signal});
      for await (const live of events(response)) take(live);
    } catch {
      // told by the state below
    }
    document.removeEventListener('visibilitychange', hide);
    samples = [];
    if (controller.signal.aborted) continue;
    put('state', 'offline, trying again');
    byId('state').dataset.state = 'offline';
    await new Promise((later) => setTimeout(later, 1000));
  }
}

export function startLive() {
  byId('tree').append(html('p', {class: 'empty'}, 'The tree of the round that runs appears here.'));
  drawStrip(byId('strip'), []);
  drawDepths(byId('depths'), []);
  byId('hold').addEventListener('click', () => {
    held = !held;
    byId('hold').setAttribute('aria-pressed', held);
    showTree();
  });
  listen();
}
