"""The script and the style sheet of a report: draws its charts, sorts its tables, and changes between light and dark.

The script does nothing with texts but to hand them to ECharts as data: it writes no HTML.
"""

from __future__ import annotations

from ropewalk.page.style import Style

REPORT_SCRIPT = r"""
(function () {
  "use strict";
  delete Object.prototype.__proto__;  // ECharts keeps texts as keys of objects: one that is called so would change all
  var root = document.documentElement;
  var system = window.matchMedia("(prefers-color-scheme: dark)");
  var options = JSON.parse(document.getElementById("charts").textContent);
  var places = Array.from(document.querySelectorAll(".chart"));
  var drawn = [];

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  }
  function changed(base, change) {
    if (!change) return base;
    if (change[0] === "=") return change[1];
    var copy = Array.isArray(base) ? base.slice() : Object.assign({}, base);
    Object.keys(change[1]).forEach(function (key) { copy[key] = changed(base[key], change[1][key]); });
    return copy;
  }
  function draw(at) {
    if (!drawn[at]) drawn[at] = echarts.init(places[at]);
    drawn[at].setOption(changed(options[at].light, isDark() ? options[at].dark : null), {notMerge: true});
    places[at].dataset.drawn = isDark() ? "dark" : "light";
  }
  function drawFrom(at) {  // one after the other, so that the first ones are seen at once
    if (at >= places.length) { root.dataset.drawn = "all"; return; }
    draw(at);
    setTimeout(function () { drawFrom(at + 1); }, 0);
  }
  function drawAgain() {
    drawn.forEach(function (chart, at) { if (chart) draw(at); });
  }
  function download(url, name) {
    var link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
  }
  function savePicture(event) {
    var place = event.target.closest("section").querySelector(".chart");
    var back = getComputedStyle(root).getPropertyValue("--back");
    var chart = echarts.getInstanceByDom(place);
    if (chart) download(chart.getDataURL({pixelRatio: 2, backgroundColor: back}), place.dataset.name + ".png");
  }
  function csvCell(value) {  // no spreadsheet takes it for a formula (OWASP, CSV injection)
    var text = value === null || value === undefined ? "" : String(value);
    if (typeof value === "string" && /^[=+@\t\r-]/.test(text)) text = "'" + text;
    return /[",\n\r]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  }
  function chartRows(option) {
    var rows = [["series", "values"]];
    (option.series || []).forEach(function (series) {
      (series.data || series.nodes || []).forEach(function (point) {
        var isObject = point !== null && typeof point === "object" && !Array.isArray(point);
        var value = !isObject ? point : "value" in point ? point.value : point.coords;
        rows.push([series.name].concat(isObject && point.name ? [point.name] : [], [value].flat(3)));
      });
    });
    return rows;
  }
  function tableRows(table) {
    return Array.from(table.rows).map(function (row) {
      return Array.from(row.cells).map(function (cell) { return cell.textContent; });
    });
  }
  function saveCsv(event) {
    var section = event.target.closest("section"), place = section.querySelector(".chart");
    var rows = place ? chartRows(options[places.indexOf(place)].light) : tableRows(section.querySelector("table"));
    var text = rows.map(function (row) { return row.map(csvCell).join(","); }).join("\r\n") + "\r\n";
    var url = URL.createObjectURL(new Blob([text], {type: "text/csv"}));
    download(url, event.target.dataset.name + ".csv");
    setTimeout(function () { URL.revokeObjectURL(url); }, 60000);
  }
  function key(row, at) {
    var cell = row.cells[at];
    var text = cell.textContent;
    if ("key" in cell.dataset) return parseFloat(cell.dataset.key);
    return /^-?[0-9][0-9,]*([.][0-9]+)?(e[+-]?[0-9]+)?$/.test(text) ? parseFloat(text.replace(/,/g, "")) : text;
  }
  function compared(one, other) {
    if (typeof one === "number" && typeof other === "number") return one - other;
    if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
    return one.localeCompare(other, undefined, {numeric: true});
  }
  function sort(event) {
    if (event.type === "keydown" && event.key !== "Enter" && event.key !== " ") return;
    var heading = event.currentTarget, at = heading.cellIndex, body = heading.closest("table").tBodies[0];
    var down = heading.getAttribute("aria-sort") === "ascending";
    Array.from(heading.parentNode.cells).forEach(function (cell) { cell.removeAttribute("aria-sort"); });
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    Array.from(body.rows)
      .map(function (row) { return {row: row, key: key(row, at)}; })
      .sort(function (one, other) { return (down ? -1 : 1) * compared(one.key, other.key); })
      .forEach(function (each) { body.appendChild(each.row); });
    event.preventDefault();
  }

  document.querySelectorAll("th").forEach(function (heading) {
    heading.addEventListener("click", sort);
    heading.addEventListener("keydown", sort);
  });
  document.querySelectorAll(".png").forEach(function (button) { button.addEventListener("click", savePicture); });
  document.querySelectorAll(".csv").forEach(function (button) { button.addEventListener("click", saveCsv); });
  document.getElementById("theme").addEventListener("click", function () {
    root.dataset.theme = isDark() ? "light" : "dark";
    drawAgain();
  });
  system.addEventListener("change", drawAgain);
  window.addEventListener("resize", function () { drawn.forEach(function (chart) { chart.resize(); }); });
  drawFrom(0);
})();
"""


def report_css(light: Style, dark: Style) -> str:
    """Return the style sheet in two themes: that of the system, or the one that was chosen."""
    variables = ":root{%s}\n@media (prefers-color-scheme: dark){:root:not([data-theme=light]){%s}}\n"
    chosen = ":root[data-theme=dark]{%s}\n"
    return variables % (_variables(light), _variables(dark)) + chosen % _variables(dark) + _RULES


def _variables(style: Style) -> str:
    scheme = "dark" if style.dark else "light"
    page = "#0d1117" if style.dark else "#f6f8fa"
    return (
        f"color-scheme:{scheme};--text:{style.text};--muted:{style.muted};--line:{style.line};--back:{style.background};"
        f"--page:{page};--bad:{style.bad}"
    )


_RULES = """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 12px 20px; max-width: 1800px; background: var(--page); color: var(--text);
  font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 14px; margin: 0 0 4px; display: flex; gap: 2px 10px; align-items: baseline; }
h2 > * { flex: none; }
h2 span { font-weight: normal; color: var(--muted); font-size: 12px; flex: 0 1 auto; }
h2 .csv { margin-left: auto; }
button { font: inherit; font-size: 12px; color: var(--muted); background: none; border: 1px solid transparent;
  border-radius: 4px; padding: 0 6px; cursor: pointer; }
button:hover { border-color: var(--line); }
button:focus-visible, th:focus-visible { outline: 2px solid #56B4E9; }
#theme { font-size: 16px; margin-left: auto; }
.title { display: flex; gap: 14px; align-items: baseline; }
.title span { white-space: nowrap; }
.facts { display: flex; flex-wrap: wrap; gap: 6px 28px; margin: 10px 0; }
.facts div { min-width: 70px; }
dt { color: var(--muted); font-size: 12px; }
dd { margin: 0; overflow-wrap: anywhere; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 480px; overflow: auto;
  font: 12px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
.failure { color: var(--bad); margin: 8px 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 520px), 1fr)); gap: 12px; }
section { background: var(--back); border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px;
  min-width: 0; }
section.wide { grid-column: 1 / -1; }
main > section, .charts { margin-top: 12px; }
.chart { width: 100%; }
.scroll { overflow: auto; max-height: 520px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--muted); font-weight: normal; cursor: pointer; white-space: nowrap; position: sticky;
  top: 0; background: var(--back); padding: 2px 16px 2px 0; }
th[aria-sort=ascending]::after { content: " \\2191"; }
th[aria-sort=descending]::after { content: " \\2193"; }
td { padding: 2px 16px 2px 0; border-top: 1px solid var(--line); vertical-align: top; white-space: nowrap; }
td.long { white-space: pre-wrap; overflow-wrap: anywhere; min-width: 200px; max-width: 700px; }
.right { text-align: right; }
footer { color: var(--muted); font-size: 12px; margin: 14px 0; }
@media print { .scroll, pre { max-height: none; } button { display: none; } }
"""

__all__ = ["REPORT_SCRIPT", "report_css"]
