// An answer's text as elements: fenced code and `code`, the rest as it is.
import {html} from './dom.js';

function inline(text) {
  return text.split(/(`[^`\n]+`)/).filter(Boolean).map((part) =>
    part.length > 2 && part.startsWith('`') && part.endsWith('`')
      ? html('code', {}, part.slice(1, -1)) : part);
}

// A fence that is still open counts as code to the end.
export function rendered(text) {
  return text.split(/^```/m).map((part, i, parts) => {
    const isLast = i === parts.length - 1;
    if (i % 2 === 0) return html('span', {}, ...inline(part.replace(/^\n/, '').replace(/\n+$/, isLast ? '$&' : '')));
    const code = part.slice(part.indexOf('\n') + 1 || part.length);
    return html('pre', {tabindex: '0'}, html('code', {}, code.replace(/\n$/, '')));
  });
}
