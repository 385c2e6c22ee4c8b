// The recorded step as a graph: its nodes in the order in which they run, folded by scope, with an edge from each value to what
// reads it. On the way from a cause to the loss, nodes and edges stand out.

/** Folders and nodes as a tree. A folder has `items`, a node has `node`; both have their `first` node's number. */
function treeOf({ nodes, scopes }) {
  const folder = (label, parent) => ({ label, parent, items: [], inner: new Map(), open: false, count: 0 });
  const into = (parent, label) => {
    if (!parent.inner.has(label)) {
      const own = folder(label, parent);
      parent.inner.set(label, own);
      parent.items.push(own);
    }
    return parent.inner.get(label);
  };
  const root = folder("", null), byId = new Map();
  root.open = true;
  for (const [id, formula, type, line, scope, phase, inputs, range] of nodes) {
    let at = root;
    for (const part of scopes[scope].split("/").filter((part) => part)) {
      // The turns of a loop are together.
      const turn = part.match(/^(.*)\[\d+\]$/);
      at = into(turn ? into(at, `${turn[1]}[ ]`) : at, part);
    }
    const node = { id, formula, type, line, scope: scopes[scope], phase: data.tape.phases[phase], inputs, range, users: [] };
    const item = { node, parent: at };
    at.items.push(item);
    byId.set(id, item);
    for (let up = at; up; up = up.parent) up.count += 1;
  }
  for (const { node } of byId.values()) node.inputs.forEach((id) => byId.get(id) && byId.get(id).node.users.push(node.id));
  const unwrap = (own) => {
    // A loop of one turn is that turn.
    own.items = own.items.map((item) => {
      if (item.node || item.items.length !== 1 || !item.label.endsWith("[ ]")) return item;
      item.items[0].parent = own;
      return item.items[0];
    });
    own.items.filter((item) => !item.node).forEach(unwrap);
  };
  unwrap(root);
  return { root, byId };
}

function rangeText(range) {
  if (!range) return "";
  const [low, high, nan, infinite] = range, parts = [];
  if (nan) parts.push(`${nan} NaN`);
  if (infinite) parts.push(`${infinite} infinite`);
  if (low !== null) parts.push(low === high ? text(low) : `${text(low)} to ${text(high)}`);
  return parts.join(", ");
}

const isOdd = (range) => Boolean(range) && range[2] + range[3] > 0;

function tape() {
  const recorded = data.tape;
  if (!recorded) return;
  const own = section("The tape: the recorded step as a graph", true);
  if (recorded.nodes.length === 0) {
    own.append(make("p", { class: "note" }, `Its ${recorded.used} nodes are too many for a graph.`));
    return;
  }
  const { root, byId } = treeOf(recorded);
  const chain = new Set(recorded.chain);
  const measured = recorded.moment ? ` Ranges are those ${recorded.moment}.` : " Ranges are measured at the end of the run.";
  own.append(make("p", { class: "note" }, `${recorded.used} nodes in the order in which they run, folded by scope; an edge goes from each value to what reads it.${measured}`));
  const bar = make("div", { class: "buttons" });
  const place = make("div", { class: "graph", id: "tape" }), details = make("div", { class: "details", id: "node", "aria-live": "polite" });
  own.append(bar, make("div", { class: "split" }, place, details));
  const folders = [];
  const walk = (item, visit) => { if (!item.node) { visit(item); item.items.forEach((inner) => walk(inner, visit)); } };
  walk(root, (folder) => folder !== root && folders.push(folder));
  const holdsChain = new Set();
  chain.forEach((id) => { for (let up = byId.get(id); up; up = up.parent) holdsChain.add(up); });
  let rows = [], rowOf = new Map(), chosen = null;

  const ROW = 26;
  const gutter = () => (place.clientWidth < 520 ? 40 : 110);

  function layout() {
    rows = [];
    rowOf = new Map();
    const hide = (item, row) => (item.node ? rowOf.set(item.node.id, row) : item.items.forEach((inner) => hide(inner, row)));
    const add = (item, level) => {
      rows.push({ item, level });
      if (item.node) rowOf.set(item.node.id, rows.length - 1);
      else if (item.open) item.items.forEach((inner) => add(inner, level + 1));
      else hide(item, rows.length - 1);
    };
    root.items.forEach((item) => add(item, 1));
  }

  /** Edges between rows, each once: the row of a value, that of what reads it, and whether it is on the way of the cause. */
  function edges() {
    const all = new Map();
    const order = new Map(recorded.chain.map((id, at) => [id, at]));
    for (const { node } of byId.values()) {
      const to = rowOf.get(node.id);
      for (const id of node.inputs) {
        const from = rowOf.get(id);
        if (from === undefined || from === to) continue;
        const isWay = order.has(id) && order.get(node.id) === order.get(id) + 1;
        const key = from * rows.length + to;
        all.set(key, { from, to, way: isWay || (all.get(key) || {}).way });
      }
    }
    return [...all.values()];
  }

  function draw() {
    layout();
    const G = gutter(), height = rows.length * ROW, middle = (row) => row * ROW + ROW / 2;
    const svg = make("svg", { width: G, height, viewBox: `0 0 ${G} ${height}`, "aria-hidden": "true", class: "edges" });
    const at = rows.findIndex((row) => row.item === chosen);
    const all = edges(), few = all.length <= 1500;
    const kind = (edge) => (edge.way ? "way" : edge.to === at ? "in" : edge.from === at ? "out" : "");
    // Edges that stand out are drawn last.
    for (const edge of all.filter((edge) => few || kind(edge)).sort((a, b) => Number(Boolean(kind(a))) - Number(Boolean(kind(b))))) {
      const bulge = Math.min(G - 4, 8 + 5 * Math.sqrt(Math.abs(edge.to - edge.from)) * (G > 60 ? 2 : 1));
      const [y1, y2] = [middle(edge.from), middle(edge.to)];
      svg.append(make("path", { class: `edge ${kind(edge)}`, d: `M${G} ${y1}C${G - bulge} ${y1} ${G - bulge} ${y2} ${G} ${y2}` }));
    }
    const list = make("ul", { role: "tree", "aria-label": "The recorded step" });
    rows.forEach(({ item, level }, i) => {
      const label = item.node ? `%${item.node.id} ${item.node.formula}` : item.label;
      const classes = [item.node ? "leaf" : "folder"];
      if (item.node ? chain.has(item.node.id) : holdsChain.has(item)) classes.push("way");
      if (item.node && recorded.chain[0] === item.node.id) classes.push("cause");
      if (item === chosen) classes.push("chosen");
      const row = make("li", { role: "treeitem", "aria-level": level, class: classes.join(" "), tabindex: item === chosen || (at < 0 && i === 0) ? "0" : "-1" });
      row.style.paddingLeft = `${G + 6 + (level - 1) * 12}px`;
      if (!item.node) row.setAttribute("aria-expanded", String(item.open));
      row.append(make("span", { class: "label" }, `${item.node ? "" : item.open ? "▾ " : "▸ "}${label}`));
      const more = item.node ? item.node.type : `${item.count} ${item.count === 1 ? "node" : "nodes"}`;
      row.append(make("span", { class: "more" }, more));
      if (item.node) row.append(make("span", { class: `range${isOdd(item.node.range) ? " odd" : ""}` }, rangeText(item.node.range)));
      row.addEventListener("click", () => { if (!item.node) item.open = !item.open; choose(item, false); });
      list.append(row);
    });
    place.replaceChildren(svg, list);
  }

  function choose(item, seen = true) {
    chosen = item;
    for (let up = item.parent; up; up = up.parent) up.open = true;
    const top = place.scrollTop;
    draw();
    place.scrollTop = top;
    const at = rows.findIndex((row) => row.item === item), y = at * ROW;
    if (seen && (y < place.scrollTop || y > place.scrollTop + place.clientHeight - ROW)) place.scrollTop = y - place.clientHeight / 3;
    const row = place.querySelectorAll("li")[at];
    if (row) row.focus({ preventScroll: true });
    describe();
  }

  function link(id) {
    const item = byId.get(id);
    if (!item) return make("span", {}, `%${id}`);
    const button = make("button", { type: "button" }, `%${id} ${item.node.formula}`);
    button.addEventListener("click", () => choose(item));
    return button;
  }

  function describe() {
    details.replaceChildren();
    if (!chosen) {
      details.append(make("p", { class: "note" }, "Choose a node to see its formula, its line, and what reads it."));
      return;
    }
    const list = make("dl", {});
    const put = (name, ...of) => list.append(make("dt", {}, name), make("dd", {}, ...of));
    if (!chosen.node) {
      put("scope", chosen.label);
      put("nodes", String(chosen.count));
      details.append(list);
      return;
    }
    const { id, formula, type, line, scope, phase, inputs, range, users } = chosen.node;
    put("node", `%${id}`);
    put("formula", formula);
    put("type and shape", type);
    put("range", rangeText(range) || "not measured");
    put("scope", scope || "the program");
    put("part", phase);
    put("line", line);
    if (recorded.chain.includes(id)) put("on the way", id === recorded.chain[0] ? "it begins here" : `${recorded.chain.indexOf(id)} nodes after the cause`);
    const several = (ids) => [...new Set(ids)].slice(0, 12).map(link);
    if (inputs.length > 0) put("reads", ...several(inputs));
    if (users.length > 0) put(`read by ${users.length}`, ...several(users));
    details.append(list);
  }

  place.addEventListener("keydown", (event) => {
    const at = rows.findIndex((row) => row.item === chosen), item = at < 0 ? null : rows[at].item;
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -rows.length, End: rows.length }[event.key];
    let next = null;
    if (by) next = rows[Math.min(rows.length - 1, Math.max(0, at + by))].item;
    else if (event.key === "ArrowRight" && item && !item.node) { if (item.open) next = item.items[0]; else { item.open = true; next = item; } }
    else if (event.key === "ArrowLeft" && item) { if (!item.node && item.open) { item.open = false; next = item; } else if (item.parent !== root) next = item.parent; }
    else if ((event.key === "Enter" || event.key === " ") && item && !item.node) { item.open = !item.open; next = item; }
    if (!next) return;
    event.preventDefault();
    choose(next);
  });
  const button = (name, act) => {
    const one = make("button", { type: "button" }, name);
    one.addEventListener("click", act);
    bar.append(one);
  };
  const unfoldChain = () => folders.forEach((folder) => { if (holdsChain.has(folder)) folder.open = true; });
  if (chain.size > 0) button("From the cause to the loss", () => { unfoldChain(); choose(byId.get(recorded.chain[0])); });
  button("Unfold all", () => { folders.forEach((folder) => { folder.open = true; }); draw(); });
  button("Fold all", () => { folders.forEach((folder) => { folder.open = false; }); chosen = null; draw(); describe(); });
  if (chain.size > 0) {
    const cause = byId.get(recorded.chain[0]);
    for (let up = cause && cause.parent; up; up = up.parent) up.open = true;
    chosen = cause || null;
  }
  draw();
  describe();
  if (chosen) place.scrollTop = Math.max(0, rows.findIndex((row) => row.item === chosen) * ROW - 100);
}
