// A filter above the tables of tested-combinations.md: by words, by how they train, and by verdict.
"use strict";

(() => {
  const COLUMNS = ["one device", "Mirrored", "2 workers", "JAX"];
  const VERDICTS = [
    ["exact", /^exact$/, "exact"],
    ["condition", /^exact if$/, "exact on a condition"],
    ["not", /^not exact/, "not exact, with a warning"],
    ["refused", /^(refused|Keras fails)/, "refused, or Keras fails"],
  ];

  function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  function select(first, options) {
    const choices = [["", first], ...options].map(([value, words]) => element("option", { value }, words));
    return element("select", {}, ...choices);
  }

  // "exact; JAX: Keras fails" is exact on all but JAX, and "one device: exact" was run on one device only.
  function verdictsOf(text) {
    const verdicts = new Map();
    for (const part of text.split(";")) {
      const [, where, word] = /^(?:(.*): )?(.*)$/.exec(part.trim());
      const columns = where ? where.split(", ") : word === "not on JAX" ? ["JAX"] : COLUMNS;
      const verdict = VERDICTS.find(([, pattern]) => pattern.test(word));
      for (const column of columns) verdicts.set(column, verdict ? verdict[0] : "");
    }
    return verdicts;
  }

  function start(place) {
    const tables = [...place.querySelectorAll("table")];
    const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
    const verdicts = new Map(rows.map((row) => [row, verdictsOf(row.cells[1].textContent)]));
    for (const [row, found] of verdicts) {
      const different = new Set(found.values());
      if (different.size === 1) row.cells[1].dataset.verdict = [...different][0];
    }
    const words = element("input", { type: "search", placeholder: "shuffle, GAN, LoRA …" });
    const column = select("any", COLUMNS.map((column) => [column, column]));
    const verdict = select("any", VERDICTS.map(([name, , label]) => [name, label]));
    const found = element("output", {});

    function filter() {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        const trained = verdicts.get(row);
        const each = column.value ? [trained.get(column.value) || ""] : [...trained.values()];
        const fits = each.some((one) => (verdict.value ? one === verdict.value : one || !column.value));
        row.hidden = !(fits && wanted.every((word) => text.includes(word)));
        shown += !row.hidden;
      }
      for (const table of tables) {
        const none = [...table.tBodies[0].rows].every((row) => row.hidden);
        const whole = table.closest(".md-typeset__scrollwrap") || table;
        whole.hidden = none;
        const heading = headings.get(table);
        if (heading) heading.hidden = none;
      }
      found.value = `${shown} of ${rows.length} combinations`;
    }

    const headings = new Map();
    let last = null;
    for (const each of place.querySelectorAll("h2, table")) {
      if (each.tagName === "H2") last = each;
      else headings.set(each, last);
    }
    const form = element(
      "form",
      { className: "filter" },
      element("label", {}, "Words", words),
      element("label", {}, "Trained on", column),
      element("label", {}, "Verdict", verdict),
      found,
    );
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    const first = headings.get(tables[0]);
    first.parentNode.insertBefore(form, first);
    filter();
  }

  const place = document.querySelector("article");
  if (place && /\/tested-combinations\//.test(location.pathname)) start(place);
})();
