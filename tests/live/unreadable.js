// What keeps a page from being read by a screen reader or used by keyboard, as a list of sentences.
() => {
const bad = [], all = (what) => [...document.querySelectorAll(what)], visible = (e) => e.offsetParent !== null;
const levels = all("h1, h2, h3").filter(visible).map((h) => +h.tagName[1]);
levels.forEach((h, k) => { if (k && h > levels[k - 1] + 1) bad.push(`heading ${levels[k - 1]} before ${h}`); });
if (levels.filter((h) => h === 1).length !== 1) bad.push("not one h1");
for (const c of all("canvas")) if (!c.closest("[aria-label]")) bad.push(`chart without a name: ${c.id}`);
for (const c of all("[role=img][aria-describedby]")) if (visible(c) && !document.getElementById(c.getAttribute("aria-describedby")).textContent) bad.push(`chart without a description: ${c.id}`);
for (const t of all("th")) if (!t.scope) bad.push(`heading without scope: ${t.textContent}`);
for (const r of all("tbody tr")) if (!r.querySelector("th")) bad.push(`row without a heading: ${r.textContent}`);
for (const t of all("table")) if (!t.getAttribute("aria-labelledby")) bad.push(`table without a name: ${t.textContent}`);
for (const e of all("button, select, a")) if (!(e.getAttribute("aria-label") || e.closest("label") || e).textContent && !e.getAttribute("aria-label")) bad.push(`control without a name: ${e.outerHTML}`);
for (const b of all(".scroll")) if (b.scrollWidth > b.clientWidth + 1 && b.tabIndex < 0) bad.push("scrolls, but not by keys");
const ids = all("[id]").map((e) => e.id);
if (new Set(ids).size < ids.length) bad.push("an id twice");
for (const mark of ["header", "nav", "main", "footer"]) if (all(mark).filter(visible).length !== 1) bad.push(`not one ${mark}`);
return bad; }
