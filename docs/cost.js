// The calculator of cost.md. Its formula is that of docs/cost.py: tests/docs/test_cost.py compares the two.
"use strict";

const preemptionCost = (() => {
  const DAY = 86400;

  // Values as on the page: gigabytes (10^9 bytes), gigabytes a second, percent.
  const FIELDS = [
    { name: "workers", label: "Workers", value: 8, min: 1, step: 1 },
    { name: "state", label: "Size of a checkpoint, GB", value: 10, min: 0.001 },
    { name: "bandwidth", label: "Bandwidth to storage, GB/s", value: 0.5, min: 0.001 },
    { name: "shared", label: "That bandwidth is of", choices: ["each worker", "all together"] },
    { name: "speed", label: "Steps a second", value: 2, min: 0.001 },
    { name: "interruptions", label: "Interruptions of a machine in a day", value: 1, min: 0 },
    { name: "noticed", label: "Of these with a notice, %", value: 90, min: 0, max: 100 },
    { name: "restart", label: "Restart, seconds", value: 180, min: 0 },
    { name: "memory", label: "Copy in memory, GB/s", value: 5, min: 0.001 },
    { name: "slowdown", label: "Slower while a save is written, %", value: 5, min: 0, max: 100 },
  ];

  function costs(job) {
    const rate = (job.workers * job.interruptions) / DAY;
    const killed = 1 - job.noticed;
    const write = job.state / (job.bandwidth * (job.shared ? 1 : job.workers));
    const away = job.restart + (job.state * (job.shared ? job.workers : 1)) / job.bandwidth;
    const pause = job.state / (job.workers * job.memory) + job.slowdown * write;

    function bestInterval() {
      if (rate * killed === 0) return Infinity;
      const mean = 1 / (rate * killed);
      const part = pause / (2 * mean);
      if (part >= 1) return Math.max(mean, write);
      const estimate = Math.sqrt(2 * pause * mean) * (1 + Math.sqrt(part) / 3 + part / 9) - pause;
      return Math.max(estimate, write);
    }

    function goodput(interval) {
      if (rate === 0) return Number.isFinite(interval) ? interval / (interval + pause) : 1;
      const [afterNotice, afterKill] = kept(interval);
      const wall = 1 / rate + job.noticed * write + Math.expm1(rate * away) / rate;
      return (job.noticed * afterNotice + killed * afterKill) / wall;
    }

    function kept(interval) {
      if (!Number.isFinite(interval)) return [1 / rate, 0];
      const period = interval + pause;
      const afterNotice = Math.expm1(-rate * interval) / Math.expm1(-rate * period) / rate;
      return [afterNotice, (interval * Math.exp(-rate * write)) / Math.expm1(rate * period)];
    }

    const interval = bestInterval();
    const [afterNotice, afterKill] = rate * killed === 0 ? [0, 0] : kept(interval);
    return {
      interval,
      goodput: goodput(interval),
      without: goodput(Infinity),
      write,
      away,
      pause,
      interruptions: rate * DAY,
      lost: afterNotice - afterKill, // About half an interval, and what is trained while a checkpoint is written.
    };
  }

  function duration(seconds) {
    if (!Number.isFinite(seconds)) return "none";
    if (seconds < 90) return `${Math.max(Math.round(seconds), 1)}s`;
    return seconds < 5400 ? `${Math.round(seconds / 60)}min` : `${(seconds / 3600).toFixed(1)}h`;
  }

  function spoken(seconds) {
    if (seconds < 99.5) return `${seconds.toPrecision(2)} s`;
    return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
  }

  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const count = (steps) => Math.round(steps).toLocaleString("en-US");

  // The form holds percent and gigabytes; the formula takes shares and, throughout, gigabytes.
  function read(form) {
    const job = {};
    for (const field of FIELDS) {
      const input = form.elements[field.name];
      if (!input.checkValidity() || input.value === "") return null;
      job[field.name] = field.choices ? input.selectedIndex === 1 : Number(input.value);
    }
    job.noticed /= 100;
    job.slowdown /= 100;
    return job;
  }

  function results(job) {
    const found = costs(job);
    const best = found.interval;
    const steps = Number.isFinite(best) ? `about ${count(best * job.speed)} steps` : "every interruption has a notice";
    return [
      ["Goodput", percent(found.goodput), `${percent(found.without)} without save_every`],
      ["Best save_every", Number.isFinite(best) ? `"${duration(best)}"` : "not needed", steps],
      ["With a notice", "0 steps lost", `${spoken(found.write + found.away)} for the save and the restart`],
      [
        "Without a notice",
        found.lost === 0 ? "does not happen" : `${count(found.lost * job.speed)} steps lost`,
        `run again on average, and ${spoken(found.away)} for the restart`,
      ],
      ["Save at a notice", spoken(found.write), "it has to fit in the grace period"],
      ["Interruptions of the job", `${Number(found.interruptions.toPrecision(3))} a day`, "of all machines together"],
    ];
  }

  function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  function input(field) {
    if (!field.choices) {
      const { name, value, min, max = "", step = "any" } = field;
      return element("input", { type: "number", name, value, min, max, step, required: true });
    }
    return element("select", { name: field.name }, ...field.choices.map((words) => element("option", {}, words)));
  }

  function start(place) {
    const form = element("form", { noValidate: true });
    form.append(...FIELDS.map((field) => element("label", {}, field.label, input(field))));
    const list = element("dl", { ariaLive: "polite" });
    const show = () => {
      const job = read(form);
      const shown = job ? results(job) : [["Not a job", "–", "one of the values is missing or out of its range"]];
      list.replaceChildren(
        ...shown.map(([name, value, note]) =>
          element("div", {}, element("dt", {}, name), element("dd", {}, value, element("small", {}, note))),
        ),
      );
    };
    form.addEventListener("input", show);
    form.addEventListener("submit", (event) => event.preventDefault());
    place.classList.add("cost");
    place.replaceChildren(form, list);
    show();
  }

  if (typeof document !== "undefined") {
    const place = document.getElementById("cost");
    if (place) start(place);
  }
  return { costs, duration };
})();

if (typeof module !== "undefined") module.exports = preemptionCost;
