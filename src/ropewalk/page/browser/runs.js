// What the tables of runs and trials do: ask for rows, keep their state in the address, and draw cells.
// Text of runs comes as JSON and becomes text nodes: no HTML is made of it.
(function () {
  var at = new URLSearchParams(location.search);
  function parsed(name, otherwise) {
    try { return JSON.parse(at.get(name)) || otherwise; } catch (e) { return otherwise; }
  }
  var T = window.ropewalkTable = {
    api: null,
    q: at.get("q") || "", group: at.get("group") || "", open: parsed("open", []),
    archived: at.get("archived") === "1", trials: at.get("trials") === "1", filters: parsed("filters", {}),
  };
  T.query = function (sort, filters) {
    var u = new URLSearchParams();
    if (T.q) u.set("q", T.q);
    if (T.group) u.set("group", T.group);
    if (T.group && T.open.length) u.set("open", JSON.stringify(T.open));
    if (T.archived) u.set("archived", "1");
    if (T.trials) u.set("trials", "1");
    if (sort.length) u.set("sort", JSON.stringify(sort.map(s => ({colId: s.colId, sort: s.sort}))));
    if (Object.keys(filters).length) u.set("filters", JSON.stringify(filters));
    return u;
  };
  function sorts() {
    return T.api.getColumnState().filter(c => c.sort).sort((a, b) => a.sortIndex - b.sortIndex);
  }
  T.shown = function () {
    return T.api.getColumnState().filter(c => !c.hide && c.colId.indexOf("ag-Grid") < 0).map(c => c.colId);
  };
  T.remember = function () {
    if (!T.api) return;
    var u = T.query(sorts(), T.api.getFilterModel());
    if (T.choseColumns || at.get("columns")) u.set("columns", T.shown().join(","));
    var text = u.toString();
    history.replaceState(history.state, "", location.pathname + (text ? "?" + text : ""));
  };
  T.set = function (change) {
    Object.assign(T, change);
    T.remember();
    if (T.api) { T.api.purgeInfiniteCache(); }
  };
  T.refresh = function () { if (T.api && !document.hidden) T.api.refreshInfiniteCache(); };
  T.ready = function (p) {
    T.api = p.api;
    p.api.addEventListener("sortChanged", T.remember);
    p.api.addEventListener("filterChanged", T.remember);
    ["columnVisible", "columnMoved"].forEach(n => p.api.addEventListener(n, function (e) {
      if (e.source !== "api" || T.choosing) { T.choseColumns = true; T.remember(); }
    }));
  };
  T.choose = function (id, visible) { T.choosing = true; T.api.setColumnsVisible([id], visible); T.choosing = false; };
  T.export = function () {
    var u = T.query(sorts(), T.api.getFilterModel());
    u.set("columns", T.shown().join(","));
    location.href = window.path_prefix + "/data/runs.csv?" + u.toString();
  };
  T.selected = function () {
    return T.api ? T.api.getSelectedRows().filter(r => r.group === undefined).map(r => r.id) : [];
  };
  T.block = function (sort, filters, start, end) {
    var u = T.query(sort, filters);
    u.set("start", start); u.set("end", end);
    return u.toString();
  };
  T.fetched = query => fetch("data/runs?" + query).then(r => r.ok ? r.json() : Promise.reject(r.status));
  T.initial = () => // or the grid asks for rows without its filters first
     (Object.keys(T.filters).length ? {filter: {filterModel: T.filters}} : {});
  T.ahead = function (end) { // asks for the first rows while the grid is loaded
    var query = T.block(parsed("sort", []), T.filters, 0, end), answer = T.fetched(query);
    answer.catch(() => {});
    T.first = {query, answer};
  };
  T.getRows = function (p) {
    var query = T.block(p.sortModel, p.filterModel, p.startRow, p.endRow), first = T.first;
    T.first = null;
    (first && first.query === query ? first.answer : T.fetched(query)).then(function (d) {
      p.successCallback(d.rows, d.num);
      var c = document.getElementById("ropewalk-count");
      if (c) c.textContent = d.num.toLocaleString("en") + (T.group ? " rows" : d.num === 1 ? " run" : " runs");
      if (!d.num) p.api.showNoRowsOverlay(); else p.api.hideOverlay();
    }).catch(function () { p.failCallback(); });
  };
  T.clicked = function (p) {
    if (!p.data || p.data.group === undefined) return;
    var i = T.open.indexOf(p.data.group);
    if (i < 0) T.open.push(p.data.group); else T.open.splice(i, 1);
    T.remember();
    T.api.refreshInfiniteCache();
  };
  T.key = function (p) { // Enter does what a click on the row's group or link does
    if (!p.event || p.event.key !== "Enter" || !p.data) return;
    if (p.data.group !== undefined) return T.clicked(p);
    var row = p.event.target.closest(".ag-row");
    var links = row ? document.querySelectorAll('.ag-row[row-id="' + CSS.escape(row.getAttribute("row-id")) + '"] a.rw-link') : [];
    if (links.length) links[0].click();
  };
  T.name = function (p) {
    var e = document.createElement("span");
    if (!p.data) return e;
    if (p.data.group !== undefined) {
      e.className = "rw-group";
      e.textContent = (p.data.is_open ? "▾ " : "▸ ") + (p.data.name || "(none)") + "  ";
      var n = document.createElement("span");
      n.className = "muted"; n.textContent = p.data.num.toLocaleString("en");
      e.appendChild(n);
      return e;
    }
    var a = document.createElement("a");
    a.href = window.path_prefix + (p.data.kind === "search" ? "/search/" : "/runs/") + encodeURIComponent(p.data.id);
    a.textContent = p.value; a.className = "rw-link";
    return a;
  };
  T.brush = function (id, intervals) { // shows what was selected by fields, when the picture is drawn
    var element = getElement(id), chart = element && element.chart, axes = [];
    if (chart && chart.getModel()) chart.getModel().eachComponent("parallelAxis", a => axes.push(a.id));
    if (axes.length !== intervals.length || !ropewalk.isDrawn(id)) return void setTimeout(() => T.brush(id, intervals), 100);
    axes.forEach((axis, at) => chart.dispatchAction(
      {type: "axisAreaSelect", parallelAxisId: axis, intervals: intervals[at]}, {silent: true, flush: true}));
  };
  T.trial = function (p) {
    var a = document.createElement("a");
    a.href = window.path_prefix + "/runs/" + encodeURIComponent(p.data.run);
    a.textContent = p.value; a.className = "rw-link";
    return a;
  };
  T.state = function (p) {
    var e = document.createElement("span");
    if (!p.data) return e;
    if (p.data.group === undefined) {
      var dot = document.createElement("span");
      dot.className = "rw-dot rw-" + p.value;
      e.appendChild(dot);
    }
    e.appendChild(document.createTextNode(p.value || ""));
    return e;
  };
  T.number = function (p) {
    var v = p.value;
    if (typeof v !== "number") return v === null || v === undefined ? "" : String(v);
    if (Number.isInteger(v) && Math.abs(v) < 1e7) return String(v);
    var t = Math.abs(v) >= 1e-3 && Math.abs(v) < 1e6 ? String(Number(v.toPrecision(5))) : v.toExponential(3);
    return p.data && p.data.group !== undefined ? "x̄ " + t : t;
  };
  T.duration = function (p) {
    var s = p.value;
    if (typeof s !== "number") return "";
    if (s < 60) return s.toPrecision(3).replace(/\.?0+$/, "") + " s";
    var d = Math.floor(s / 86400), h = Math.floor(s % 86400 / 3600), m = Math.floor(s % 3600 / 60);
    var pad = x => String(x).padStart(2, "0");
    return d ? d + "d" + pad(h) + "h" : h ? h + "h" + pad(m) + "m" : m + "m" + pad(Math.floor(s % 60)) + "s";
  };
  T.moment = function (p) {
    if (typeof p.value !== "number") return "";
    var d = new Date(p.value * 1000), pad = x => String(x).padStart(2, "0");
    var day = d.getFullYear() + "-" + pad(d.getMonth() + 1) + "-" + pad(d.getDate());
    return day + " " + pad(d.getHours()) + ":" + pad(d.getMinutes());
  };
})();
