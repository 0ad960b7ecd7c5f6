"use strict";
(() => {
  const one = (sel, in_ = document) => in_.querySelector(sel);
  const all = (sel, in_ = document) => [...in_.querySelectorAll(sel)];

  // The filter has a key of its own.
  document.addEventListener("keydown", e => {
    const typing = e.target.closest("input, textarea, select");
    if (e.key === "/" && !typing && !e.ctrlKey && !e.metaKey && !e.altKey) {
      const q = one("#q");
      if (q) { e.preventDefault(); q.focus(); q.select(); }
    }
  });

  // In a list to review, y and n decide the row that has the focus and go to the next; j and k only move.
  document.addEventListener("keydown", e => {
    const box = e.target.closest("[data-review] input[type=checkbox]");
    if (!box || e.ctrlKey || e.metaKey || e.altKey) return;
    const step = { y: 1, n: 1, j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[e.key];
    if (!step) return;
    if (e.key === "y" || e.key === "n") box.checked = e.key === "y";
    const boxes = all("input[type=checkbox]", box.closest("[data-review]"));
    const next = boxes[boxes.indexOf(box) + step] || one("[data-after]");
    e.preventDefault();
    next.focus();
  });

  // Copying.
  const arm = root => all("[data-copy]", root).forEach(b => b.classList.add("on"));
  arm(document);

  // In a narrow window each row of a table stands for itself, so its cells say what they are.
  const label = root => all("table.rows", root).forEach(table => {
    const heads = all("thead th", table).map(th => th.textContent.trim());
    all("tbody tr", table).forEach(tr => [...tr.cells].forEach((td, i) => { if (td.colSpan == 1 && td.matches(".n, .t") && heads[i]) td.dataset.is = heads[i].toLowerCase(); }));
  });
  label(document);
  document.addEventListener("click", async e => {
    const b = e.target.closest("[data-copy]");
    if (!b) return;
    await navigator.clipboard.writeText(b.dataset.copy);
    const said = b.textContent;
    b.textContent = "Copied";
    setTimeout(() => { b.textContent = said; }, 1500);
  });

  // A drag over a chart chooses a span of time.
  let from = null, chart = null;
  const barAt = e => e.target.closest("[data-brush] g[data-from]");
  const span = (a, b) => a.dataset.from <= b.dataset.from ? [a.dataset.from, b.dataset.to] : [b.dataset.from, a.dataset.to];
  const mark = to => {
    const [s, u] = span(from, to);
    all("g[data-from]", chart).forEach(g => g.classList.toggle("chosen", g.dataset.from >= s && g.dataset.to <= u));
  };
  document.addEventListener("pointerdown", e => {
    const g = barAt(e);
    if (!g || e.button !== 0) return;
    from = g; chart = g.closest("[data-brush]"); mark(g);
    e.preventDefault();
  });
  document.addEventListener("pointermove", e => { const g = from && barAt(e); if (g) mark(g); });
  document.addEventListener("pointerup", e => {
    if (!from) return;
    const [s, u] = span(from, barAt(e) || from);
    from = null;
    const url = new URL(location.href);
    url.searchParams.set("q", [document.body.dataset.words, "since:" + s, "until:" + u].join(" ").trim());
    url.searchParams.delete("before");
    location.assign(url);
  });

  // A notification says only how many questions there are: a sandbox chose the rest.
  const waiting = doc => Number(doc.body.dataset.questions);
  let told = waiting(document);
  const tell = n => {
    if (n > told && "Notification" in window && Notification.permission === "granted") new Notification("egressd", { body: n === 1 ? "A request waits for an answer." : n + " requests wait for an answer.", tag: "egressd" });
    told = n;
    document.title = document.title.replace(/^\(\d+\) /, "");
    if (n) document.title = "(" + n + ") " + document.title;
  };
  const ask = one("[data-notify]");
  if (ask && "Notification" in window && Notification.permission === "default") {
    ask.classList.add("on");
    ask.addEventListener("click", async () => { await Notification.requestPermission(); ask.classList.remove("on"); });
  }

  // What is live is fetched again and put in place of what is there. XMLHttpRequest parses the answer into a
  // document in which no script runs.
  let known = document.body.dataset.next, pending = false, paused = false, timer = null, busy = false, stream = null;
  const held = node => node.matches("[data-hold]") && (node.matches(":hover") || node.contains(document.activeElement) || !getSelection().isCollapsed && node.contains(getSelection().anchorNode));
  const place = fresh => {
    for (const node of all(document.body.dataset.fresh ? '[data-live="state"]' : "[data-live]")) {
      const next = one(`[data-live="${node.dataset.live}"]`, fresh);
      if (!next) { if (!held(node)) node.replaceChildren(); continue; }
      if (held(node) || paused && node.matches("[data-hold]")) { pending = pending || !node.isEqualNode(next); continue; }
      if (node.contains(document.activeElement) && node !== document.activeElement) { pending = true; continue; }
      const open = all("details[open]", node).map(d => one(".name", d)?.textContent);
      const ticked = all("input:checked", node).map(i => i.value);
      const fresher = document.importNode(next, true);
      for (const d of all("details", fresher)) if (open.includes(one(".name", d)?.textContent)) d.open = true;
      for (const i of all("input[type=checkbox]", fresher)) i.checked = ticked.includes(i.value);
      const left = node.scrollLeft;
      node.replaceWith(fresher);
      fresher.scrollLeft = left;
      arm(fresher);
      label(fresher);
    }
    // A question is added also while a form has the focus, and one that was answered goes.
    for (const node of all("[data-each]")) {
      const next = one(`[data-each="${node.dataset.each}"]`, fresh);
      const keys = in_ => all("[data-key]", in_).map(e => e.dataset.key);
      const there = keys(node), wanted = next ? keys(next) : [];
      for (const e of all("[data-key]", node)) if (!wanted.includes(e.dataset.key)) e.remove();
      if (next) for (const e of all("[data-key]", next)) if (!there.includes(e.dataset.key)) node.append(document.importNode(e, true));
    }
    const navs = all("nav", fresh);
    if (!document.body.dataset.fresh) all("nav").forEach((nav, i) => {
      if (navs[i] && !nav.contains(document.activeElement)) nav.replaceChildren(...[...document.importNode(navs[i], true).children]);
    });
    const newer = one("[data-newer]");
    if (newer) newer.hidden = !pending;
    known = fresh.body.dataset.next;
    tell(waiting(fresh));
  };
  const refresh = () => {
    if (busy || document.hidden && !stream) { pending = true; return; }
    busy = true; pending = false;
    const x = new XMLHttpRequest();
    x.open("GET", document.body.dataset.fresh || location.href);
    x.responseType = "document";
    x.timeout = 20000;
    x.onload = () => { if (x.status === 200 && x.response) place(x.response); };
    x.onloadend = () => { busy = false; };
    x.send();
  };
  // How long a request still waits for its answer.
  const tick = () => {
    for (const t of all("[data-until]")) {
      const s = Math.round((new Date(t.dateTime) - Date.now()) / 1000);
      t.textContent = s > 0 ? new Date(t.dateTime).toLocaleTimeString("sv") + ", in " + s + " s" : "now";
    }
  };
  tick();
  setInterval(tick, 1000);
  const soon = wait => { clearTimeout(timer); timer = setTimeout(refresh, wait); };
  if (one("[data-live]") && "EventSource" in window) {
    const open = () => {
      stream = new EventSource("/v1/events?after=" + known);
      stream.onmessage = () => soon(300);
    };
    const close = () => { stream?.close(); stream = null; };
    open();
    // Tabs in the background keep no connection: a browser has only six for a server.
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) { if (!stream) open(); refresh(); } else if (!("Notification" in window) || Notification.permission !== "granted") close();
    });
    setInterval(() => { if (pending && !paused) refresh(); else if (one("[data-reading]")) refresh(); }, 2000);
  }
  const button = one("[data-pause]");
  if (button) {
    button.classList.add("on");
    button.addEventListener("click", () => {
      paused = !paused;
      button.setAttribute("aria-pressed", paused);
      button.textContent = paused ? "Go on" : "Pause";
      if (!paused) refresh();
    });
  }
})();
