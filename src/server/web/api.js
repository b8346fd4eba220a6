// Requests to the server: the API key, errors as its messages, server-sent events.
import {byId} from './dom.js';

let key = sessionStorage.getItem('coppice-key') ?? '';
let asking = null;

// Resolves when a key was entered; one dialog for all who wait.
function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = byId('key-dialog');
    dialog.addEventListener('close', () => {
      key = byId('key').value;
      sessionStorage.setItem('coppice-key', key);
      asking = null;
      resolve();
    }, {once: true});
    dialog.showModal();
  });
  return asking;
}

async function explain(response) {
  try {
    const body = await response.json();
    return body.error?.message ?? response.statusText;
  } catch {
    return response.statusText;
  }
}

// A response with a good status. Throws Error with the server's own words.
export async function request(path, options = {}) {
  for (;;) {
    const headers = {...options.headers};
    if (key) headers.Authorization = `Bearer ${key}`;
    const response = await fetch(path, {...options, headers});
    if (response.status === 401) {
      await askForKey();
      continue;
    }
    if (!response.ok) throw new Error(await explain(response));
    return response;
  }
}

// The JSON of every data line until "[DONE]" or the end.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      const parts = (rest + value).split('\n\n');
      rest = parts.pop();
      for (const part of parts) {
        const line = part.split('\n').find((text) => text.startsWith('data: '));
        if (line === undefined) continue;
        if (line === 'data: [DONE]') return;
        yield JSON.parse(line.slice(6));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
