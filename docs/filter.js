// A filter above the lists and tables of tested-combinations.md: by words, by how they train, and by verdict.
"use strict";

(() => {
  const COLUMNS = [["1", "one device"], ["M", "Mirrored"], ["W", "2 workers"], ["J", "JAX"]];
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

  // "exact; J: Keras fails" is exact on all but JAX, and "1: exact" was run on one device only.
  function verdictsOf(text) {
    const verdicts = new Map();
    for (const part of text.split(";")) {
      const [, where, word] = /^(?:(.*): )?(.*)$/.exec(part.trim());
      const columns = where ? where.split(", ") : COLUMNS.map(([column]) => column);
      const verdict = VERDICTS.find(([, pattern]) => pattern.test(word));
      for (const column of columns) verdicts.set(column, verdict ? verdict[0] : "");
    }
    return verdicts;
  }

  function start(place) {
    const tables = [...place.querySelectorAll("table")];
    const [legend, ...lists] = [...place.querySelectorAll("h2 + ul")].reverse();
    const reasons = new Map([...legend.children].map((item) => [item.querySelector("strong").textContent, item]));
    const verdicts = new Map();
    const texts = new Map();
    for (const row of tables.flatMap((table) => [...table.tBodies[0].rows])) {
      verdicts.set(row, verdictsOf(row.cells[1].textContent));
      const letters = [...row.cells[2].querySelectorAll("a")].map((link) => link.textContent);
      texts.set(row, [row, ...letters.map((letter) => reasons.get(letter))].map((each) => each.textContent).join(" "));
      const different = new Set(verdicts.get(row).values());
      if (different.size === 1) row.cells[1].dataset.verdict = [...different][0];
    }
    for (const item of lists.flatMap((list) => [...list.children])) {
      verdicts.set(item, verdictsOf("exact"));
      texts.set(item, item.textContent);
    }
    const rows = [...verdicts.keys()];
    const words = element("input", { type: "search", placeholder: "shuffle, GAN, LoRA …" });
    const column = select("any", COLUMNS);
    const verdict = select("any", VERDICTS.map(([name, , label]) => [name, label]));
    const found = element("output", {});

    function filter() {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = texts.get(row).toLowerCase();
        const trained = verdicts.get(row);
        const each = column.value ? [trained.get(column.value) || ""] : [...trained.values()];
        const fits = each.some((one) => (verdict.value ? one === verdict.value : one || !column.value));
        row.hidden = !(fits && wanted.every((word) => text.includes(word)));
        shown += !row.hidden;
      }
      for (const [heading, parts] of sections) {
        for (const part of parts) {
          const items = part.tBodies ? [...part.tBodies[0].rows] : [...part.children];
          (part.closest(".md-typeset__scrollwrap") || part).hidden = items.every((item) => item.hidden);
        }
        heading.hidden = parts.every((part) => (part.closest(".md-typeset__scrollwrap") || part).hidden);
      }
      found.value = `${shown} of ${rows.length} combinations`;
    }

    const sections = new Map();
    for (const each of place.querySelectorAll("h2, h2 + ul, table")) {
      if (each.tagName === "H2") sections.set(each, []);
      else if (each !== legend) [...sections.values()].at(-1).push(each);
    }
    for (const [heading, parts] of sections) if (!parts.length) sections.delete(heading);
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
    const [first] = sections.keys();
    first.parentNode.insertBefore(form, first);
    filter();
  }

  const place = document.querySelector("article");
  if (place && /\/tested-combinations\//.test(location.pathname)) start(place);
})();
