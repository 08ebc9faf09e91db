// A filter above the tables of tested-combinations.md: by words, by how they train, and by verdict.
"use strict";

(() => {
  const VERDICTS = [
    ["exact", /^exact$/, "exact"],
    ["condition", /^exact \(/, "exact on a condition"],
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

  // The list below a table has its notes; a cell ends with the number of its own, such as "exact (3)".
  function noteOf(cell, notes) {
    const number = /\((\d+)\)$/.exec(cell.textContent.trim());
    return number && notes ? notes.children[Number(number[1]) - 1].textContent.trim() : "";
  }

  function start(place) {
    const tables = [...place.querySelectorAll("table")];
    const lists = new Map();
    let before = null;
    for (const each of place.querySelectorAll("table, ol")) {
      if (each.tagName === "TABLE") before = each;
      else if (before) lists.set(before, each);
    }
    const columns = [...tables[0].tHead.rows[0].cells].slice(1).map((cell, index) => [index + 1, cell.textContent]);
    const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
    for (const row of rows) {
      for (const cell of [...row.cells].slice(1)) {
        const verdict = VERDICTS.find(([, pattern]) => pattern.test(cell.textContent.trim()));
        if (verdict) cell.dataset.verdict = verdict[0];
        cell.title = noteOf(cell, lists.get(row.closest("table")));
      }
    }
    const words = element("input", { type: "search", placeholder: "shuffle, GAN, LoRA …" });
    const column = select("any", columns);
    const verdict = select("any", VERDICTS.map(([name, , label]) => [name, label]));
    const found = element("output", {});

    function filter() {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = [row.textContent, ...[...row.cells].map((cell) => cell.title)].join(" ").toLowerCase();
        const cells = column.value ? [row.cells[Number(column.value)]] : [...row.cells].slice(1);
        const fits = cells.some((cell) => (verdict.value ? cell.dataset.verdict === verdict.value : cell.dataset.verdict || !column.value));
        row.hidden = !(fits && wanted.every((word) => text.includes(word)));
        shown += !row.hidden;
      }
      for (const table of tables) {
        const none = [...table.tBodies[0].rows].every((row) => row.hidden);
        const whole = table.closest(".md-typeset__scrollwrap") || table;
        whole.hidden = none;
        const heading = headings.get(table);
        if (heading) heading.hidden = none;
        const list = lists.get(table);
        if (list) list.hidden = none;
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
