// The conversation: sends it, streams the answer, stops it.
import {events, request} from './api.js';
import {byId, html} from './dom.js';
import {rendered} from './text.js';

const EXAMPLES = ['What is the capital of France?', 'Write a Python function to sort a list.',
                  'Explain what a linked list is.'];

let messages = [];
let running = null;  // AbortController of the answer that streams

function settings() {
  const budget = byId('budget').value;
  const body = {
    temperature: Number(byId('temperature').value),
    max_tokens: Math.max(1, Number(byId('max-tokens').value) || 256),
    chat_template_kwargs: {thinking: byId('thinking').checked},
  };
  if (budget !== '') body.ddtree_budget = Number(budget);
  return body;
}

function follow() {
  const log = byId('log');
  log.scrollTop = log.scrollHeight;
}

function addTurn(kind) {
  const text = html('div', {class: 'text'});
  const after = html('div', {class: 'after'});
  const turn = html('article', {class: `turn ${kind}`}, text, after);
  byId('log').append(turn);
  return {turn, text, after, thoughts: null};
}

function showThoughts(view, thoughts) {
  if (!thoughts) return;
  if (!view.thoughts) {
    view.thoughts = html('div');
    view.turn.prepend(html('details', {open: ''}, html('summary', {}, 'Thoughts'), view.thoughts));
  }
  view.thoughts.textContent = thoughts;
}

// What one answer has become so far.
class Answer {
  content = '';
  thoughts = '';
  calls = [];
  usage = null;
  finish = null;
  began = 0;

  add(chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    this.began ||= performance.now();
    this.content += choice.delta.content ?? '';
    this.thoughts += choice.delta.reasoning_content ?? choice.delta.reasoning ?? '';
    for (const part of choice.delta.tool_calls ?? []) {
      const call = this.calls[part.index] ??= {id: part.id, type: 'function', function: {name: '', arguments: ''}};
      call.function.name += part.function?.name ?? '';
      call.function.arguments += part.function?.arguments ?? '';
    }
    this.finish = choice.finish_reason ?? this.finish;
  }

  text() {
    const calls = this.calls.filter(Boolean).map((call) => `\`${call.function.name}(${call.function.arguments})\``);
    return [this.content, ...calls].filter(Boolean).join('\n');
  }

  summary(stopped) {
    const tokens = this.usage?.completion_tokens ?? 0;
    const seconds = (performance.now() - this.began) / 1000;
    const parts = [`${tokens} tokens`];
    if (this.began && seconds > 0.01) parts.push(`${(tokens / seconds).toFixed(0)} tokens/s at this page`);
    if (stopped) parts.push('stopped');
    else if (this.finish === 'length') parts.push('cut at max tokens');
    return parts.join(', ');
  }
}

function setBusy(busy) {
  byId('stop').hidden = !busy;
  byId('send').disabled = busy;
  document.body.dataset.busy = busy;
}

async function stream(view, answer, controller) {
  let drawn = false;
  const draw = () => {
    drawn = false;
    const log = byId('log');
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    showThoughts(view, answer.thoughts);
    view.text.replaceChildren(...rendered(answer.text()));
    if (atEnd) follow();
  };
  const response = await request('/v1/chat/completions', {
    method: 'POST',
    headers: {'Content-Type': 'application/json'},
    signal: controller.signal,
    body: JSON.stringify({...settings(), messages, stream: true,
                          stream_options: {include_usage: true, continuous_usage_stats: true}}),
  });
  try {
    for await (const chunk of events(response)) {
      answer.add(chunk);
      if (!drawn) requestAnimationFrame(draw);
      drawn = true;
    }
  } finally {
    draw();
  }
}

async function send(question) {
  if (running || !question.trim()) return;
  byId('welcome').hidden = true;
  byId('welcome').style.display = 'none';
  messages.push({role: 'user', content: question});
  addTurn('user').text.textContent = question;
  const view = addTurn('assistant busy');
  const answer = new Answer();
  const controller = running = new AbortController();
  const conversation = messages;
  setBusy(true);
  follow();
  try {
    await stream(view, answer, controller);
    view.after.textContent = answer.summary(false);
  } catch (error) {
    if (controller.signal.aborted) {
      view.after.textContent = answer.summary(true);
    } else {
      view.turn.classList.add('error');
      view.text.append(`${answer.text() ? '\n' : ''}${error.message}`);
    }
  }
  view.turn.classList.remove('busy');
  if (answer.content || answer.calls.length) {
    conversation.push({role: 'assistant', content: answer.content});
  } else if (!answer.finish) {
    conversation.pop();  // an unanswered question is not asked again with the next one
  }
  running = null;
  setBusy(false);
  follow();
}

export function stop() {
  running?.abort();
}

function clear() {
  stop();
  messages = [];
  for (const turn of document.querySelectorAll('.turn')) turn.remove();
  byId('welcome').style.display = '';
  byId('question').focus();
}

export function startChat() {
  const question = byId('question');
  const submit = () => {
    if (running) return;
    const text = question.value;
    question.value = '';
    send(text);
  };
  byId('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    submit();
  });
  question.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && !byId('key-dialog').open) stop();
  });
  byId('stop').addEventListener('click', () => {
    stop();
    question.focus();
  });
  byId('new-chat').addEventListener('click', clear);
  byId('temperature').addEventListener('input', (event) => {
    byId('temperature-value').textContent = Number(event.target.value).toFixed(1);
  });
  for (const text of EXAMPLES) {
    const button = html('button', {type: 'button', class: 'quiet'}, text);
    button.addEventListener('click', () => send(text));
    byId('examples').append(button);
  }
  question.focus();
}
