// The small charts: a stacked bar of a round's time, tokens of the last rounds, what is kept by depth.
import {html, svg} from './dom.js';

const VERBS = [['draft', 'draft'], ['tree_build', 'tree build'], ['cut_and_compile', 'compile'],
               ['verify', 'verify'], ['commit', 'commit'], ['other', 'other']];

export function formatMs(ms) {
  return ms >= 100 ? ms.toFixed(0) : ms >= 10 ? ms.toFixed(1) : ms >= 0.1 ? ms.toFixed(2) : ms.toFixed(3);
}

// ms: by verb, of one round. The parts are made once and then only stretched.
export class TimesView {
  constructor(host) {
    this.parts = VERBS.map(([verb]) => {
      const part = html('i');
      part.style.background = `var(--${verb})`;
      return part;
    });
    this.labels = VERBS.map(([verb, name]) => {
      const value = html('em', {class: 'number'}, '\u2013');
      const label = html('span', {}, html('em', {}, `${name} `), value);
      label.style.color = `var(--${verb})`;
      return {label, value};
    });
    this.bar = html('div', {class: 'stack', role: 'img', 'aria-label': 'time of a round'}, ...this.parts);
    host.append(this.bar, html('div', {class: 'legend'}, ...this.labels.map(({label}) => label)));
  }

  draw(ms) {
    VERBS.forEach(([verb, name], i) => {
      this.parts[i].style.flexGrow = ms[verb];
      this.parts[i].title = `${name}: ${formatMs(ms[verb])} ms`;
      this.labels[i].value.textContent = formatMs(ms[verb]);
      if (verb === 'other') this.labels[i].label.hidden = ms.other < 0.01 * ms.verify;
    });
    this.bar.setAttribute('aria-label', VERBS.map(([verb, name]) => `${name} ${formatMs(ms[verb])} ms`).join(', '));
  }
}

// counts: tokens of each of the last rounds, oldest first.
export function drawStrip(host, counts) {
  const width = 300, height = 74, step = width / Math.max(24, counts.length);
  const highest = Math.max(4, ...counts);
  const y = (count) => height - (height - 4) * count / highest;
  const mean = counts.reduce((sum, count) => sum + count, 0) / Math.max(1, counts.length);
  host.replaceChildren(svg('svg', {role: 'img', viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none',
                                   height, 'aria-label': `mean of the last ${counts.length} rounds: ${mean.toFixed(2)}`},
    ...counts.map((count, i) => svg('rect', {class: 'bar-round', x: i * step, y: y(count), rx: 1,
                                             width: step * 0.72, height: height - y(count)})),
    counts.length ? svg('line', {class: 'bar-mean', x1: 0, x2: width, y1: y(mean), y2: y(mean)}) : ''));
}

// shares: [depth - 1]: of the rounds whose tree reached a depth, those that kept a node there; null: none reached it.
export function drawDepths(host, shares) {
  const width = 300, height = 74, count = Math.max(4, shares.length), step = width / count, floor = height - 13;
  const bars = shares.flatMap((share, i) => {
    const x = (i + 0.12) * step, size = step * 0.76, tall = share === null ? 0 : (floor - 12) * share;
    return [
      svg('rect', {class: 'bar-back', x, y: 12, width: size, height: floor - 12, rx: 2}),
      svg('rect', {class: 'bar-kept', x, y: floor - tall, width: size, height: tall, rx: 2}),
      svg('text', {class: 'faint', x: x + size / 2, y: height - 2, 'font-size': 10, 'text-anchor': 'middle'}, String(i + 1)),
      svg('text', {x: x + size / 2, y: floor - tall - 3, 'font-size': 9.5, 'text-anchor': 'middle'},
          share === null ? '' : (100 * share).toFixed(0)),
    ];
  });
  const words = shares.map((share, i) => share === null ? '' : `depth ${i + 1}: ${(100 * share).toFixed(0)} %`);
  host.replaceChildren(svg('svg', {role: 'img', viewBox: `0 0 ${width} ${height}`, height,
                                   'aria-label': words.filter(Boolean).join(', ')}, ...bars));
}
