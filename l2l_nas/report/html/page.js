// What the page has on top: what tables say of the nearest dot, one trial lit wherever it stands, copying of commands.
(() => {
  "use strict";
  const folded = (choices) => { // equal neighbours as one: 3*relu
    const runs = [];
    for (const name of choices)
      if (runs.at(-1)?.name === name) runs.at(-1).length += 1;
      else runs.push({ name, length: 1 });
    return runs.map(({ name, length }) => (length > 1 ? `${length}*${name}` : name)).join(", ");
  };
  for (const table of document.querySelectorAll("table.stack")) {
    const heads = [...table.tHead.rows[0].cells];
    for (const row of table.tBodies[0].rows)
      for (const cell of row.cells) { // what is not in the page where rows are many
        cell.dataset.label ??= heads[cell.cellIndex].textContent;
        cell.className ||= heads[cell.cellIndex].className;
      }
    const names = JSON.parse(table.dataset.names ?? "[]");
    for (const code of table.querySelectorAll("small.code")) {
      const digits = code.textContent.includes(".") ? code.textContent.split(".") : [...code.textContent];
      code.textContent = folded(digits.map((digit, position) => names[position][parseInt(digit, 36)]));
    }
  }
  const rowOf = (trial, table = "trials") => document.querySelector(`#${table} tr[data-trial="${Number(trial)}"]`);
  const said = (trial) => {
    const found = new Map(); // a finalist has rows in two tables, which share some columns
    for (const table of ["finalists", "trials"])
      for (const cell of [...(rowOf(trial, table)?.cells ?? [])].slice(1))
        found.set(cell.dataset.label, cell.title || `${cell.dataset.label}: ${cell.textContent.trim()}`);
    return [...found.values()];
  };
  const box = document.createElement("div");
  box.id = "tip";
  box.hidden = true;
  document.body.append(box);

  let lit = [];
  const light = (trial) => {
    for (const element of lit) element.classList.remove("lit");
    lit = trial === undefined ? [] : [...document.querySelectorAll(`[data-trial="${Number(trial)}"]`)];
    for (const element of lit) element.classList.add("lit");
  };

  const nearest = (plot, x, y) => {
    let best = null, least = 22;
    for (const dot of plot.querySelectorAll("circle[data-trial]")) {
      const place = dot.getBoundingClientRect();
      const far = Math.hypot(place.x + place.width / 2 - x, place.y + place.height / 2 - y);
      if (far < least) [best, least] = [dot, far];
    }
    return best;
  };

  const owner = ({ target, clientX, clientY }) => {
    if (!(target instanceof Element)) return null;
    const plot = target.closest("svg.plot");
    return plot ? target.closest("circle[data-trial], text[data-trial]") ?? nearest(plot, clientX, clientY) : null;
  };

  const show = (event) => {
    const found = owner(event);
    const holder = found || (event.target instanceof Element ? event.target.closest("[data-trial]") : null);
    light(holder?.dataset.trial);
    box.hidden = !found;
    if (!found) return;
    const strong = document.createElement("strong");
    strong.textContent = `Trial ${found.dataset.trial}`;
    box.replaceChildren(strong, ...said(found.dataset.trial).map((line) => {
      const part = document.createElement("span");
      part.textContent = line;
      return part;
    }));
    const { width, height } = box.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - width - 8);
    const below = event.clientY + 18;
    box.style.left = `${Math.max(8, left)}px`;
    box.style.top = `${below + height > innerHeight - 8 ? Math.max(8, event.clientY - height - 14) : below}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("click", (event) => {
    const svg = event.target instanceof Element ? event.target.closest("svg") : null;
    const trial = svg && (owner(event) ?? svg.closest("[data-trial]"))?.dataset.trial;
    const row = trial && rowOf(trial);
    if (!row) return;
    row.closest("details").open = true;
    document.querySelector("#trials .picked")?.classList.remove("picked");
    row.classList.add("picked");
    row.scrollIntoView({ block: "center" });
  });
  const hide = () => { box.hidden = true; light(undefined); };
  document.documentElement.addEventListener("pointerleave", hide);
  document.addEventListener("scroll", hide, { passive: true });

  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.parentNode.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code); // not allowed: one key is left to press
        button.textContent = "Press Ctrl-C";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
})();
