// Problems of a page for users of keyboards and screen readers; an empty list if there are none.
() => {
  const problems = [];
  const name = (e) => (e.getAttribute('aria-label') || e.textContent || e.value || e.title || '').trim();
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach(id => problems.push('id twice: ' + id));
  for (const e of document.querySelectorAll('input:not([type=hidden]), select, textarea')) {
    if (!e.labels.length && !e.getAttribute('aria-label')) problems.push('no label: ' + e.id + e.name);
  }
  for (const e of document.querySelectorAll('a[href], button')) {
    if (!name(e) && !e.querySelector('svg, time')) problems.push('no name: ' + e.outerHTML.slice(0, 80));
  }
  for (const e of document.querySelectorAll('td a')) {
    const text = [...e.parentElement.childNodes].some(n => n.nodeType === 3 && /[\p{L}\p{N}]/u.test(n.data));
    if (text && getComputedStyle(e).textDecorationLine === 'none')
      problems.push('a link in a text that only its colour tells: ' + name(e));
  }
  for (const e of document.querySelectorAll('table')) {
    if (!e.caption) problems.push('table without caption');
    for (const h of e.querySelectorAll('thead th')) if (h.scope !== 'col') problems.push('th without scope');
  }
  for (const e of document.querySelectorAll('[aria-labelledby], [aria-describedby]')) {
    for (const id of (e.getAttribute('aria-labelledby') || e.getAttribute('aria-describedby')).split(' ')) {
      if (!document.getElementById(id)) problems.push('refers to nothing: ' + id);
    }
  }
  if (document.querySelectorAll('h1').length !== 1) problems.push('not one h1');
  if (document.querySelectorAll('main').length !== 1) problems.push('not one main');
  if (!document.documentElement.lang) problems.push('no language');
  let level = 1;
  for (const e of document.querySelectorAll('main h1, main h2, main h3, main h4')) {
    const next = Number(e.tagName[1]);
    if (next > level + 1) problems.push('heading skipped: ' + e.innerText);
    level = next;
  }
  for (const e of document.querySelectorAll('button, .button, select, input:not([type=hidden])')) {
    const box = e.getBoundingClientRect();
    const small = e.type === 'checkbox' || e.type === 'radio';
    if (box.width && !small && (box.width < 24 || box.height < 24)) problems.push('small target: ' + name(e));
  }
  for (const e of document.querySelectorAll('.scroll')) {
    if (e.scrollWidth > e.clientWidth && !e.matches('[tabindex]') && !e.querySelector('a, button'))
      problems.push('a region that scrolls cannot be reached by keys');
  }
  if (document.documentElement.scrollWidth > innerWidth) problems.push('wider than the window');
  return problems;
}
