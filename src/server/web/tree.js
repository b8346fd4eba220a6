// The draft tree as SVG: depth to the right, likelier siblings above, the kept path in green.
import {svg} from './dom.js';

const CHAR = 7.3, GAP = 26, PAD = 8, LONGEST = 14;
const BLANKS = {' ': '\u00b7', '\n': '\u21b5', '\t': '\u21e5', '\r': '\u240d'};

// The text with blanks made visible, cut to what a node holds.
function visible(text) {
  const characters = [...text].map((c) => BLANKS[c] ?? (c < ' ' ? '\ufffd' : c));
  return characters.length > LONGEST ? [...characters.slice(0, LONGEST - 1), '\u2026'] : characters;
}

function percent(logProb) {
  const value = 100 * Math.exp(logProb);
  return value >= 9.95 ? value.toFixed(0) : value >= 0.095 ? value.toFixed(1) : '<0.1';
}

// Adds the bonus token, which the model chose after the kept path, and each node's place.
function layOut(round) {
  const nodes = round.nodes.map((node, i) => ({...node, id: i, children: []}));
  const last = nodes.findLast((node) => node.accepted) ?? nodes[0];
  const bonus = round.emitted.at(-1);
  if (bonus !== undefined)
    nodes.push({text: bonus, parent: last.id, depth: last.depth + 1, accepted: true, bonus: true, children: []});
  for (const node of nodes) {
    node.label = visible(node.text);
    node.prob = node.bonus || node.parent < 0 ? '' : percent(node.log_prob);
    node.width = 2 * PAD + CHAR * node.label.length + (node.prob ? 7 + 5.9 * node.prob.length : 0);
    if (node.parent >= 0) nodes[node.parent].children.push(node);
  }
  let rows = 0;
  const place = (node) => {
    if (node.children.length === 0) {
      node.row = rows++;
      return;
    }
    node.children.forEach(place);
    node.row = (node.children[0].row + node.children.at(-1).row) / 2;
  };
  place(nodes[0]);
  const columns = [];
  for (const node of nodes) columns[node.depth] = Math.max(columns[node.depth] ?? 0, node.width);
  let x = 1;
  const starts = columns.map((width) => (x += width + GAP) - width - GAP);
  return {nodes, rows, starts, width: x - GAP + 1};
}

function drawNode(node, height, font) {
  const kind = node.parent < 0 ? 'root' : node.bonus ? 'bonus' : node.accepted ? 'kept' : 'left';
  const text = svg('text', {x: PAD, y: height / 2 + font * 0.35, 'font-size': font},
    ...node.label.map((c) => svg('tspan', Object.values(BLANKS).includes(c) ? {class: 'blank'} : {}, c)));
  const group = svg('g', {class: `node ${kind}`, transform: `translate(${node.x} ${node.y - height / 2})`},
    svg('rect', {width: node.width, height, rx: Math.min(7, height / 2.4)}), text);
  if (node.prob)
    group.append(svg('text', {class: 'prob', x: node.width - PAD, y: height / 2 + font * 0.33,
                              'font-size': font - 2.6, 'text-anchor': 'end'}, node.prob));
  const title = kind === 'root' ? 'the last token so far' : kind === 'bonus' ? "the model's own next token"
    : `joint probability ${node.prob} %${node.accepted ? ', kept' : ''}`;
  group.prepend(svg('title', {}, `${JSON.stringify(node.text)}: ${title}`));
  if (kind === 'left') group.setAttribute('opacity', (0.6 + 0.4 * Math.sqrt(Math.exp(node.log_prob))).toFixed(2));
  return group;
}

function drawEdge(parent, node) {
  const x0 = parent.x + parent.width, x1 = node.x, middle = (x0 + x1) / 2;
  const share = node.bonus ? 0.2 : Math.exp(node.log_prob - (parent.log_prob ?? 0));
  return svg('path', {class: node.accepted ? 'edge kept' : 'edge',
                      'stroke-width': (1 + 2.6 * Math.min(1, share)).toFixed(1),
                      'stroke-dasharray': node.bonus ? '3 4' : null,
                      d: `M${x0} ${parent.y}C${middle} ${parent.y} ${middle} ${node.y} ${x1} ${node.y}`});
}

// The sizes only grow during one answer, so that the picture stands still.
export class TreeView {
  constructor(host) {
    this.host = host;
    this.request = null;
  }

  draw(round) {
    if (round.request !== this.request) {
      this.request = round.request;
      this.width = this.height = 0;
    }
    const {nodes, rows, starts, width} = layOut(round);
    const room = Math.max(240, this.host.clientHeight - 4);
    const step = Math.max(17, Math.min(31, room / rows));
    this.width = Math.max(this.width, width, this.host.clientWidth);
    this.height = Math.max(this.height, rows * step, Math.min(room, 240));
    const top = (this.height - rows * step) / 2;
    const box = Math.min(23, step - 4), font = Math.min(12.5, box - 3.5);
    for (const node of nodes) {
      node.x = starts[node.depth];
      node.y = top + (node.row + 0.5) * step;
    }
    const order = [...nodes].sort((a, b) => a.accepted - b.accepted);
    const edges = order.filter((node) => node.parent >= 0).map((node) => drawEdge(nodes[node.parent], node));
    this.host.replaceChildren(
      svg('svg', {role: 'img', viewBox: `0 0 ${this.width.toFixed(0)} ${this.height.toFixed(0)}`,
                  'aria-label': `${round.nodes.length - 1} draft nodes; kept: ${round.emitted.join('')}`},
          ...edges, ...order.map((node) => drawNode(node, box, font))));
  }
}
