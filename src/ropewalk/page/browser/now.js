// What the pages of running things do in the browser: cells and tiles of processes, logs, and the task stream.
// Every text comes from processes: it is only ever set as textContent.
window.ropewalk = (function () {
  "use strict";
  const stores = {}, queues = {};
  const EACH_MS = 50, MOST_TRIES = 1200;

  // Calls for what is being made wait until it is there, and keep their order; those for what is gone are forgotten.
  function whenThere(id, find, call) {
    const waiting = (queues[id] ||= []);
    waiting.push(call);
    if (waiting.length > 1) return;
    let tries = 0;
    (function next() {
      const found = find();
      if (!found && ++tries < MOST_TRIES) return void setTimeout(next, EACH_MS);
      delete queues[id];
      if (found) for (const one of waiting) one(found);
    })();
  }

  function withGrid(id, call) {
    whenThere(id, () => getElement(id)?.api && getElement(id), call);
  }

  function withChart(id, call) {
    whenThere(id, () => getElement(id)?.chart && getElement(id), call);
  }

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function duration(seconds) {
    if (seconds === null || seconds === undefined || seconds === "") return "";
    if (seconds < 0.0995) return `${Math.round(1000 * seconds)} ms`;
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    if (seconds < 59.5) return `${Math.round(seconds)} s`;
    const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
    if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
    if (whole < 86400) return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
    return `${Math.floor(whole / 86400)}d${two(Math.floor((whole % 86400) / 3600))}h`;
  }

  function size(mib) {
    return mib >= 1024 ? `${(mib / 1024).toFixed(1)} GiB` : `${Math.round(mib)} MiB`;
  }

  function bar(share, text, bad) {
    const cell = make("div", "rw-bar"), fill = make("i", bad ? "rw-bad" : "");
    fill.style.width = `${Math.max(0, Math.min(100, 100 * share))}%`;
    cell.append(fill, make("span", "", text));
    return cell;
  }

  function titled(element) {
    element.title = element.textContent;
    return element;
  }

  const known = (value) => value !== null && value !== undefined;
  const cells = {
    state(params) {
      const row = params.data, cell = make("span", "rw-state");
      cell.append(make("span", `rw-dot rw-${row.look}`), make("span", "", row.state));
      if (row.straggler) cell.append(make("span", "rw-mark", "slow"));
      return cell;
    },
    cpu: (params) => (known(params.value) ? bar(params.value, `${Math.round(100 * params.value)} %`) : make("span")),
    memory(params) {
      if (!params.value) return make("span");
      return bar(params.value / Math.max(1, params.context.most), size(params.value));
    },
    silent(params) {
      return make("span", params.value >= 5 ? "rw-text-warn" : "", params.value >= 2 ? duration(params.value) : "");
    },
    cause: (params) => titled(make("span", "rw-text-bad", params.value || "")),
    text: (params) => titled(make("span", "", params.value)),
    name(params) { // its end is what tells it from others
      const cell = make("span", "rw-ending"), text = make("bdi", "", params.value);
      cell.title = params.value;
      cell.append(text);
      return cell;
    },
    pid: (params) => params.value || "",
    restarts: (params) => make("span", params.value ? "rw-text-warn" : "", params.value || ""),
    duration: (params) => duration(params.value),
    count: (params) => (known(params.value) ? params.value.toLocaleString("en-US") : ""),
    rate: (params) => (known(params.value) ? params.value.toLocaleString("en-US") : ""),
    time(params) {
      if (!params.value) return "";
      const at = new Date(1000 * params.value), today = at.toDateString() === new Date().toDateString();
      return today ? at.toLocaleTimeString("en-GB") : at.toLocaleString("en-GB");
    },
    event(params) {
      const cell = make("span", "rw-state");
      cell.append(make("span", `rw-dot rw-${params.data.look}`), make("span", "", params.value || "other"));
      return cell;
    },
  };

  function open(name) {
    emitEvent("rw_process", name);
  }

  function openHash() {
    if (location.hash.length > 1) open(decodeURIComponent(location.hash.slice(1)));
  }

  window.addEventListener("hashchange", openHash); // a link to a process, followed while its page is open

  function setHash(name) {
    history.replaceState(null, "", location.pathname + location.search + (name ? `#${encodeURIComponent(name)}` : ""));
  }

  function remember(entries) {
    const address = new URL(location.href);
    for (const [name, value] of Object.entries(entries)) {
      if (value) address.searchParams.set(name, value);
      else address.searchParams.delete(name);
    }
    history.replaceState(history.state, "", address);
  }

  function onKey(params) {
    if (params.event && params.event.key === "Enter" && params.data) open(params.data.name);
  }

  // --- processes: a grid, and above it a map of tiles by host ---

  function paint(tile, row) {
    const silent = row.silent_s >= 5;
    tile.className = `rw-tile rw-${row.look}${row.straggler ? " rw-slow" : ""}${silent ? " rw-silent" : ""}`;
    tile.style.setProperty("--busy", Math.min(1, row.cpu || 0).toFixed(1));
    const doing = row.doing ? `, ${row.doing}` : "", cpu = known(row.cpu) ? `, ${Math.round(100 * row.cpu)} % CPU` : "";
    tile.title = `${row.name}: ${row.state}${doing}${cpu}${row.straggler ? ", slower than the others" : ""}` +
      (silent ? `, silent for ${duration(row.silent_s)}` : "");
  }

  function tilesOf(map, store, host) {
    let tiles = store.hosts.get(host);
    if (!tiles) {
      const line = make("div", "rw-host"), label = make("div", "", host);
      label.title = host;
      tiles = make("div", "rw-tiles");
      line.append(label, tiles);
      const after = [...store.hosts.keys()].filter((other) => other > host && other !== "this host").sort()[0];
      map.insertBefore(line, host === "this host" ? map.firstChild : after ? store.hosts.get(after).parentNode : null);
      store.hosts.set(host, tiles);
    }
    return tiles;
  }

  function leaveHost(store, tiles) {
    if (tiles.childNodes.length) return;
    for (const [host, those] of store.hosts) if (those === tiles) store.hosts.delete(host);
    tiles.parentNode.remove();
  }

  function processes(gridId, mapId, changes) {
    withGrid(gridId, (grid) => showProcesses(gridId, grid, getHtmlElement(mapId), changes));
  }

  function showProcesses(gridId, grid, map, changes) {
    let store = stores[gridId];
    if (!store || changes.all) {
      store = stores[gridId] = { rows: new Map(), hosts: new Map(), tiles: new Map() };
      map.textContent = "";
    }
    const add = [], update = [], remove = [], context = grid.api.getGridOption("context");
    for (const row of changes.rows) {
      const old = store.rows.get(row.name);
      const whole = old ? Object.assign(old, row) : row;
      (old ? update : add).push(whole);
      store.rows.set(row.name, whole);
      let tile = store.tiles.get(row.name);
      if (!tile) {
        tile = make("button");
        tile.onclick = () => open(row.name);
        store.tiles.set(row.name, tile);
      }
      const tiles = tilesOf(map, store, whole.host);
      if (tile.parentNode !== tiles) {
        const before = tile.parentNode;
        tiles.append(tile);
        if (before) leaveHost(store, before);
      }
      paint(tile, whole);
    }
    for (const name of changes.gone) {
      const row = store.rows.get(name), tile = store.tiles.get(name);
      if (row) remove.push(row);
      if (tile) {
        const tiles = tile.parentNode;
        tile.remove();
        leaveHost(store, tiles);
      }
      store.rows.delete(name);
      store.tiles.delete(name);
    }
    const rows = [...store.rows.values()];
    context.most = Math.max(1, ...rows.map((row) => row.memory || 0));
    const several = (field) => new Set(rows.map((row) => row[field])).size > 1;
    const showColumn = (column, isShown) => {
      if (store[column] === isShown) return;
      store[column] = isShown;
      grid.api.setColumnsVisible([column], isShown);
    };
    showColumn("host", several("host"));
    showColumn("group", several("group") && rows.some((row) => !row.name.startsWith(row.group))); // else the name says it
    showColumn("silent_s", store.silent_s || rows.some((row) => row.silent_s >= 2)); // once shown, it stays
    showColumn("pid", !several("group"));
    if (changes.all) grid.api.setGridOption("rowData", rows);
    else grid.api.applyTransaction({ add, update, remove });
  }

  function filter(gridId, text) {
    withGrid(gridId, (grid) => grid.api.setGridOption("quickFilterText", text));
  }

  function save(gridId, fileName) {
    const unit = (column) => column.getColDef().context?.unit; // a file has numbers without units in its cells
    const moment = (seconds) => (known(seconds) ? new Date(1000 * seconds).toISOString() : "");
    getElement(gridId).api.exportDataAsCsv({
      fileName,
      processHeaderCallback({ column }) {
        const name = column.getColDef().headerName;
        return unit(column) ? `${name} (${unit(column)})` : name;
      },
      processCellCallback: ({ column, value }) => (unit(column) === "UTC" ? moment(value) : plain(value)),
    });
  }

  // A table of texts is a grid of elements, row by row; what can be clicked on has no text that is worth saving.
  function saveTable(id, numColumns, fileName) {
    const text = (cell) => {
      const icons = [...cell.querySelectorAll(".q-icon")].map((icon) => icon.innerText);
      return cell.innerText.split("\n").filter((line) => line && !icons.includes(line)).join(" ");
    };
    const cells = [...getHtmlElement(id).children].map((cell) => (cell.querySelector("button") ? "" : text(cell)));
    const quoted = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    const lines = [];
    for (let at = 0; at < cells.length; at += numColumns) {
      const row = cells.slice(at, at + numColumns);
      if (row.some((value) => value)) lines.push(row.map((value) => quoted(plain(value))).join(","));
    }
    const address = URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
    const link = make("a");
    link.href = address;
    link.download = fileName;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 60000);
  }

  // No spreadsheet takes it for a formula (OWASP, CSV injection).
  function plain(value) {
    return typeof value === "string" && /^[=+@\t\r-]/.test(value) ? `'${value}` : value;
  }

  const MOST_ROWS = 5000;

  function rows(gridId, added) {
    withGrid(gridId, (grid) => {
      const kept = (stores[gridId] ||= []);
      kept.unshift(...added);
      grid.api.applyTransaction({ add: added, addIndex: 0, remove: kept.splice(MOST_ROWS) });
    });
  }

  // --- logs ---

  const MOST_LINES = 20000, LIFE = "--- ropewalk: ";
  const LOOKS = { error: "rw-text-bad", warning: "rw-text-warn", debug: "rw-text-muted" };

  function logLine(line, level, lower) {
    const life = line.startsWith(LIFE); // the end of a process; its successor goes on below
    const element = make("div", life ? "rw-life" : LOOKS[level] || "");
    const at = lower ? line.toLowerCase().indexOf(lower) : -1;
    if (at < 0) element.textContent = line === "" ? "\u00a0" : line;
    else element.append(line.slice(0, at), make("span", "rw-hit", line.slice(at, at + lower.length)),
      line.slice(at + lower.length));
    return element;
  }

  // New lines are followed only by who sees the last one: who has scrolled up to read stays there.
  function log(id, change, lines, needle) {
    const box = getHtmlElement(id);
    if (!box) return;
    const below = box.scrollHeight - box.scrollTop, isAtEnd = below <= box.clientHeight + 40;
    if (change !== "add") box.textContent = "";
    const lower = (needle || "").toLowerCase();
    box.append(...lines.map(([line, level]) => logLine(line, level, lower)));
    while (box.childNodes.length > MOST_LINES) box.firstChild.remove();
    if (change === "extend") box.scrollTop = box.scrollHeight - below;
    else if (change === "replace" || isAtEnd) box.scrollTop = box.scrollHeight;
  }

  // --- charts: the latest option is drawn, for a fifth of the time, and after a second at the latest; what is not in
  // sight is drawn once, and then when it comes into sight, which the page is told ---

  const SHARE = 5, MOST_WAIT_MS = 1000, NEAR_PX = 200;

  function chart(id, option, height) {
    const store = (stores[id] ||= { timer: 0, num: -1, next: 0, inSight: true, told: true });
    store.pending = { option, height };
    withChart(id, (element) => {
      watchChart(element, store);
      drawChart(element, store);
    });
  }

  function fit(element, height) { // Vue sets the `height` that the server gave again with each update of the page
    const style = element.$el.style;
    if (style.maxHeight === `${height}px`) return;
    style.minHeight = style.maxHeight = `${height}px`;
    element.chart.resize();
  }

  function watchChart(element, store) {
    if (store.watch) return;
    store.watch = new IntersectionObserver((entries) => {
      store.inSight = entries[entries.length - 1].isIntersecting;
      if (element.$el.isConnected) seeChart(element, store);
      else store.watch.disconnect();
    }, { rootMargin: `${NEAR_PX}px` });
    store.watch.observe(element.$el);
  }

  function seeChart(element, store) {
    const isSeen = store.inSight && !document.hidden;
    if (isSeen !== store.told) element.$emit("seen", store.told = isSeen);
    drawChart(element, store);
  }

  function drawChart(element, store) {
    if (!store.pending || document.hidden || store.timer || element.chart.isDisposed()) return;
    if (!store.inSight && store.num >= 0) return;
    const begun = performance.now(), { option, height } = store.pending, num = (option.series || []).length;
    if (store.num > 0 && begun < store.next) {
      store.timer = setTimeout(() => { store.timer = 0; drawChart(element, store); }, store.next - begun);
      return;
    }
    store.pending = null;
    fit(element, height);
    element.chart.setOption(option, { notMerge: num !== store.num }); // what the visitor chose stays if it can
    element.chart.getZr().flush();
    store.num = num;
    store.next = begun + Math.min(MOST_WAIT_MS, SHARE * (performance.now() - begun));
  }

  document.addEventListener("visibilitychange", () => {
    for (const [id, store] of Object.entries(stores)) {
      if ("num" in store) withChart(id, (element) => seeChart(element, store));
    }
  });

  // --- the task stream: the whole option once, then what is new ---

  function stream(id, change) {
    withChart(id, (element) => showStream(id, element, change));
  }

  function showStream(id, element, change) {
    const chart = element.chart;
    let store = stores[id];
    if (!store || store.chart !== chart) store = stores[id] = { chart, series: [], next: 0, seen: true, timer: 0 };
    if (!store.watch) {
      showTips(element, store);
      store.watch = new IntersectionObserver((entries) => {
        store.seen = entries[entries.length - 1].isIntersecting;
        if (store.seen) draw(store);
      });
      store.watch.observe(element.$el);
    }
    if (change.option) {
      fit(element, change.height);
      store.series = change.option.series;
      store.pending = { option: change.option };
    } else {
      for (const one of store.series) take(one, change);
      store.pending = store.pending || {};
      if (change.end) store.pending.xAxis = { min: 1000 * change.begin, max: 1000 * change.end };
    }
    draw(store);
  }

  function showTips(element, store) {
    const tip = make("div", "rw-tip"), hidden = {};
    element.$el.parentNode.append(tip);
    store.chart.on("legendselectchanged", (event) => Object.assign(hidden, event.selected));
    store.chart.getZr().on("globalout", () => { tip.style.display = "none"; });
    store.chart.getZr().on("mousemove", (event) => {
      const at = [event.offsetX, event.offsetY];
      const item = store.chart.containPixel("grid", at) && itemAt(store, hidden, store.chart.convertFromPixel("grid", at));
      tip.style.display = item ? "block" : "none";
      if (!item) return;
      tip.textContent = item.name;
      tip.style.left = `${Math.max(0, Math.min(at[0] + 12, element.$el.clientWidth - tip.offsetWidth - 4))}px`;
      tip.style.top = `${at[1] + 14}px`;
    });
  }

  function itemAt(store, hidden, [time, row]) {
    for (const one of store.series) {
      if (one.type !== "lines" || hidden[one.name] === false) continue;
      for (const item of one.data) {
        const [from, to] = item.coords;
        if (from[1] === Math.round(row) && from[0] <= time && time <= to[0]) return item;
      }
    }
    return null;
  }

  function take(one, change) {
    const added = change.items[one.name] || [], begin = 1000 * (change.begin || 0);
    if (change.whole.includes(one.name)) {
      one.data = added;
      return;
    }
    const kept = one.data.filter((item) => (item.coords ? item.coords[1][0] : item.value[0]) >= begin);
    for (const item of kept) if (item.coords) item.coords[0][0] = Math.max(begin, item.coords[0][0]);
    one.data = added.length ? kept.concat(added) : kept;
  }

  function draw(store) {
    if (!store.pending || !store.seen || document.hidden || store.timer) return;
    const wait = store.next - performance.now();
    if (wait > 0) {
      store.timer = setTimeout(() => { store.timer = 0; draw(store); }, wait);
      return;
    }
    const begun = performance.now(), { option, xAxis } = store.pending;
    store.pending = null;
    if (option) {
      if (xAxis) Object.assign(option.xAxis, xAxis);
      store.chart.setOption(option, { notMerge: true });
    } else {
      const series = store.series.map((one) => ({ data: one.data }));
      store.chart.setOption(xAxis ? { series, xAxis } : { series });
    }
    store.next = begun + SHARE * (performance.now() - begun);
  }

  return { cells, open, openHash, setHash, remember, onKey, processes, filter, save, saveTable, rows, log, chart,
    stream, isDrawn: (id) => !stores[id]?.pending };
})();
