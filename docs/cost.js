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
    { name: "together", label: "At a restart, a worker reads", choices: ["all", "its share"] },
    { name: "memory_every", label: "memory_every, s (0: none)", value: 0, min: 0 },
    { name: "memory_restore", label: "Restore from memory, s", value: 2, min: 0 },
  ];

  // The fields that differ from the values above. 419 unexpected interruptions in 54 days, on 2,048 machines of 8 GPUs.
  const PRESETS = {
    "8 spot machines": {},
    "Llama 3, 16,384 GPUs": {
      ...{ workers: 2048, state: 4860, bandwidth: 2000, shared: true, speed: 0.1, interruptions: 419 / 54 / 2048 },
      ...{ noticed: 0, together: true },
    },
  };

  function costs(job) {
    const rate = (job.workers * job.interruptions) / DAY;
    const killed = 1 - job.noticed;
    const write = job.state / (job.bandwidth * (job.shared ? 1 : job.workers));
    const readers = job.together ? 1 : job.workers;
    const away = job.restart + (job.state * readers) / (job.bandwidth * (job.shared ? 1 : job.workers));
    const fromMemory = job.restart + job.memory_restore;
    const copy = job.state / (job.workers * job.memory);
    const pause = copy + job.slowdown * write;
    const inMemory = job.memory_every > 0 && job.workers > 1;
    const memoryShare = inMemory ? share(job.memory_every, copy) : 1;
    const fallback = inMemory && rate > 0 ? lostNeighbour() : 1;

    function share(interval, stop) {
      return Number.isFinite(interval) ? interval / (interval + stop) : 1;
    }

    function lostNeighbour() {
      const exposed = Math.expm1(rate * (fromMemory + job.memory_every + copy)) / rate;
      const neighbours = (Math.min(2, job.workers - 1) * rate) / job.workers;
      return -Math.expm1(-neighbours * exposed * Math.exp(rate * fromMemory));
    }

    function daly(stop, often) {
      if (often === 0) return Infinity;
      const mean = 1 / often;
      const part = stop / (2 * mean);
      return part >= 1 ? mean : Math.sqrt(2 * stop * mean) * (1 + Math.sqrt(part) / 3 + part / 9) - stop;
    }

    function goodput(interval) {
      if (rate === 0) return share(interval, pause) * memoryShare;
      const [afterNotice, afterKill] = kept(interval);
      const survived = killed * (1 - fallback);
      const restart = ((1 - survived) * Math.expm1(rate * away) + survived * Math.expm1(rate * fromMemory)) / rate;
      return Math.max(0, job.noticed * afterNotice + killed * afterKill) / (1 / rate + job.noticed * write + restart);
    }

    function kept(interval) {
      const period = interval + pause;
      const finite = Number.isFinite(interval);
      const trained = finite ? Math.expm1(-rate * interval) / Math.expm1(-rate * period) / rate : 1 / rate;
      const afterKill = finite ? (interval * Math.exp(-rate * write)) / Math.expm1(rate * period) : 0;
      if (!inMemory) return [trained, afterKill];
      const life = trained * memoryShare;
      const memory = job.memory_every / Math.expm1((rate * (job.memory_every + copy)) / share(interval, pause));
      const written = Math.exp(-rate * write);
      const since = (interval * (2 - written)) / (2 * written) + write;
      const age = 1 / (1 / since + (job.noticed + killed * fallback) / life);
      return [life, (1 - fallback) * memory + fallback * (life - age)];
    }

    const interval = Math.max(daly(pause, rate * killed * fallback), write);
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
      memoryInterval: daly(copy, rate * killed),
      fromMemory,
      fallback: inMemory ? fallback : null,
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
    const inMemory = found.fallback !== null;
    const restart = inMemory ? found.fromMemory : found.away;
    const memoryBest = Number.isFinite(found.memoryInterval) ? `"${duration(found.memoryInterval)}"` : "not needed";
    const none = job.workers > 1 ? "no saves in memory now" : "a machine that goes takes them along";
    return [
      ["Goodput", percent(found.goodput), `${percent(found.without)} without save_every`],
      ["Best save_every", Number.isFinite(best) ? `"${duration(best)}"` : "not needed", steps],
      ["With a notice", "0 steps lost", `${spoken(found.write + found.away)} for the save and the restart`],
      [
        "Without a notice",
        found.lost === 0 ? "does not happen" : `${count(found.lost * job.speed)} steps lost`,
        `run again on average, and ${spoken(restart)} for the restart`,
      ],
      [
        "Best memory_every",
        job.workers > 1 ? memoryBest : "not needed",
        inMemory ? `${Number((100 * found.fallback).toPrecision(2))} % lose two neighbours at once` : none,
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
    const preset = element("select", {}, ...Object.keys(PRESETS).map((words) => element("option", {}, words)));
    form.append(element("label", {}, "Start from", preset));
    form.append(...FIELDS.map((field) => element("label", {}, field.label, input(field))));
    preset.addEventListener("input", () => {
      for (const { name, value = false } of FIELDS) {
        const chosen = { [name]: value, ...PRESETS[preset.value] }[name];
        if (typeof chosen === "boolean") form.elements[name].selectedIndex = Number(chosen);
        else form.elements[name].value = Number(chosen.toPrecision(6));
      }
    });
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
  return { costs, duration, presets: PRESETS };
})();

if (typeof module !== "undefined") module.exports = preemptionCost;
