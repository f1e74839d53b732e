// Makes pages livelier. Without it every page works: forms, links and a reload do the same.
"use strict";
(() => {
  const body = document.body;
  const REFRESH_MS = Number(body.dataset.refreshMs) || 5000;
  const ANNOUNCE_MS = 10000;
  let paused = false;
  let announcedAt = 0;

  // Parts of a page that refresh: the same address is fetched, and parts of the same id replaced.
  async function refresh() {
    if (paused || document.hidden || isBusy()) return;
    let answer;
    try {
      answer = await fetch(location.href, {headers: {"X-Refresh": "1", Accept: "text/html"}, redirect: "manual"});
    } catch (error) {
      showLost();
      return;
    }
    if (answer.type === "opaqueredirect" || answer.status === 401) { location.reload(); return; }
    const text = await answer.text();
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const parts = document.querySelectorAll("[data-part]");
    if (!answer.ok && !fresh.querySelector("[data-part]")) { showLost(); return; }
    for (const part of parts) {
      const next = fresh.getElementById(part.id);
      if (next) replace(part, next);
    }
  }

  function replace(part, next) {
    if (part.innerHTML === next.innerHTML) return;
    const open = [...part.querySelectorAll("details")].map((each) => each.open);
    const chosen = [...part.querySelectorAll("tbody tr")].findIndex((row) => row.classList.contains("chosen"));
    const scrolled = [...part.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    part.replaceChildren(...next.childNodes);
    [...part.querySelectorAll("details")].forEach((each, index) => { if (index < open.length) each.open = open[index]; });
    [...part.querySelectorAll(".scroll")].forEach((each, index) => { each.scrollLeft = scrolled[index] || 0; });
    const rows = part.querySelectorAll("tbody tr");
    if (chosen >= 0 && rows[chosen]) rows[chosen].classList.add("chosen");
    if (part.id === "freshness") announce(part.textContent.trim());
  }

  // Nothing moves under the hands of somebody who selects text or uses a control inside a part.
  function isBusy() {
    const selection = getSelection();
    if (selection && !selection.isCollapsed) return true;
    const active = document.activeElement;
    return Boolean(active && active.closest("[data-part]") && active.matches("input, select, textarea"));
  }

  let lastState = "";
  function announce(text) {
    const bad = document.querySelector("#freshness .dot-bad");
    const state = bad ? text : "";
    if (state === lastState || Date.now() - announcedAt < ANNOUNCE_MS) return;
    lastState = state;
    announcedAt = Date.now();
    const place = document.getElementById("announce");
    if (place) place.textContent = text;
  }

  function showLost() {
    const place = document.getElementById("freshness");
    if (!place) return;
    const dot = document.createElement("span");
    dot.className = "dot dot-bad";
    place.replaceChildren(dot, body.dataset.lostText);
    announce(body.dataset.lostText);
  }

  const control = document.getElementById("live-switch");
  function pause(next) {
    paused = next;
    control.setAttribute("aria-pressed", String(paused));
    control.firstElementChild.textContent = paused ? body.dataset.pausedText : body.dataset.liveText;
    if (!paused) refresh();
  }
  if (body.dataset.live === "on" && control) {
    control.hidden = false;
    control.addEventListener("click", () => pause(!paused));
    setInterval(refresh, REFRESH_MS);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  }

  // Lists that send their form when they change, and buttons that copy.
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  });
  for (const button of document.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    const text = button.textContent;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = "✓";
      setTimeout(() => { button.textContent = text; }, 1500);
    });
  }
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });

  // Keys; none inside fields, and none if they are switched off.
  let prefix = false;
  function choose(step) {
    const rows = [...document.querySelectorAll("table.rows tbody tr")];
    if (!rows.length) return;
    const at = rows.findIndex((row) => row.classList.contains("chosen"));
    const next = Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + step));
    rows.forEach((row, index) => row.classList.toggle("chosen", index === next));
    rows[next].scrollIntoView({block: "nearest"});
    const link = rows[next].querySelector("a");
    if (link) link.focus({preventScroll: true});
  }
  document.addEventListener("keydown", (event) => {
    if (body.dataset.shortcuts === "off" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea, dialog[open]")) return;
    const wasPrefix = prefix;
    prefix = false;
    if (wasPrefix) {
      const link = document.querySelector(`.side a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    const help = document.getElementById("key-help");
    const search = document.getElementById("search");
    const acts = {
      "/": () => { if (search) search.focus(); },
      "g": () => { prefix = true; },
      "j": () => choose(1),
      "k": () => choose(-1),
      ".": () => { if (control && !control.hidden) pause(!paused); },
      "?": () => { if (help) help.showModal(); },
    };
    if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
  });
})();
