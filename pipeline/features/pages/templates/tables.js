// Tables sort by their headings, or by a list where rows are cards, and filter by what is typed; on a
// phone long ones show their first rows. A tap on a mark of a chart shows its tooltip. Without this they are plain tables and charts.
(() => {
  "use strict";
  const FILTERED_FROM = 9;
  const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
  const key = (row, column) => {
    const cell = row.cells[column];
    return "sort" in cell.dataset ? Number(cell.dataset.sort) : cell.textContent.trim();
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b);

  function sortable(holder, table) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    const select = document.createElement("select");
    const sort = (column, order) => {
      heads.forEach((head) => head.removeAttribute("aria-sort"));
      const rows = [...original];
      if (order) {
        heads[column].setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        rows.sort((a, b) => sign * compare(key(a, column), key(b, column)));
      }
      body.append(...rows);
      select.value = order ? `${column} ${order}` : "";
    };
    select.className = "sort";
    select.setAttribute("aria-label", `Sort: ${table.caption.textContent}`);
    select.add(new Option("As it came", ""));
    heads.forEach((head, column) => {
      const figures = head.classList.contains("number");
      const cycle = figures ? ["descending", "ascending"] : ["ascending", "descending"];
      const words = figures ? ["greatest first", "least first"] : ["A to Z", "Z to A"];
      const title = head.textContent;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = title;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        sort(column, cycle[cycle.indexOf(head.getAttribute("aria-sort")) + 1]);
      });
      cycle.forEach((order, n) => select.add(new Option(`${title}, ${words[n]}`, `${column} ${order}`)));
    });
    select.addEventListener("change", () => sort(...select.value.split(" ")));
    if (original.length >= FILTERED_FROM) holder.querySelector(".scroll").before(select);
  }

  function filterable(holder, table) {
    const rows = [...table.tBodies[0].rows];
    if (rows.length < FILTERED_FROM) return;
    const label = document.createElement("label");
    const input = document.createElement("input");
    const told = document.createElement("output");
    input.type = "search";
    input.placeholder = "Filter";
    input.setAttribute("aria-label", `Filter: ${table.caption.textContent}`);
    label.className = "filter";
    label.append(input, told);
    const apply = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row) => {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      });
      if (words.length) holder.classList.remove("short");
      told.textContent = words.length ? `${shown} of ${rows.length}` : `${rows.length} rows`;
    };
    input.addEventListener("input", apply);
    holder.querySelector(".scroll").before(label);
    // A link such as index.html#actions=vision shows the rows with that word.
    const fromLink = () => {
      const [name, words] = decodeURIComponent(location.hash.slice(1)).split("=");
      if (name === holder.id && words) {
        input.value = words;
        apply();
        holder.querySelectorAll("details").forEach((part) => { part.open = true; });
        holder.scrollIntoView();
      }
    };
    addEventListener("hashchange", fromLink);
    apply();
    fromLink();
  }

  function shortened(holder, table) {
    const rows = table.tBodies[0].rows.length;
    if (rows < FILTERED_FROM || holder.matches(".folded")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "more";
    button.textContent = `Show all ${rows} rows`;
    button.addEventListener("click", () => holder.classList.remove("short"));
    holder.classList.add("short", ...[12, 24].filter((most) => rows > most).map((n) => `over-${n}`));
    holder.querySelector(".scroll").after(button);
  }

  function tappable(figure) {
    const told = document.createElement("output");
    figure.append(told);
    figure.addEventListener("click", (event) => {
      const mark = event.target.closest("svg *, .bar");
      const title = mark?.title || mark?.querySelector(":scope > title")?.textContent;
      if (title) told.textContent = title;
    });
  }

  // The rows of methods: filtered by verdict, backend and words, sorted, opened by keys.
  function methods(list) {
    const rows = [...list.querySelectorAll(":scope > details")];
    const bar = document.createElement("div");
    const count = document.createElement("output");
    const choose = (label, options) => {
      const select = document.createElement("select");
      select.setAttribute("aria-label", label);
      options.forEach(([text, value]) => select.add(new Option(text, value)));
      bar.append(select);
      return select;
    };
    const words = (name) => list.dataset[name].split("|").filter(Boolean);
    const numbered = (name, matches) =>
      words(name).map((word) => [`${word} (${rows.filter((row) => matches(row, word)).length})`, word]);
    const ofVerdict = (row, word) => row.dataset.verdict === word;
    const ofBackend = (row, word) => row.dataset.backends.split("|").includes(word);
    bar.className = "filters";
    const verdict = choose("Verdict", [["Every verdict", ""], ...numbered("verdicts", ofVerdict)]);
    const backend = choose("Backend", [["Every backend", ""], ...numbered("backends", ofBackend)]);
    const order = choose("Order", [
      ["Worst first", ""], ["Nearest to its limit", "ratio -1"], ["Least delegated", "share 1"],
      ["Largest", "bytes -1"], ["Slowest", "milliseconds -1"],
    ]);
    const input = document.createElement("input");
    input.type = "search";
    input.placeholder = "Filter methods";
    input.setAttribute("aria-label", "Filter methods");
    const all = document.createElement("button");
    all.type = "button";
    all.textContent = "Open all";
    bar.append(input, all, count);
    const apply = () => {
      const typed = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row) => {
        const text = row.textContent.toLowerCase();
        row.hidden = Boolean(verdict.value && !ofVerdict(row, verdict.value))
          || Boolean(backend.value && !ofBackend(row, backend.value))
          || !typed.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      });
      count.textContent = `${shown} of ${rows.length}`;
    };
    const sort = () => {
      const [field, sign] = order.value.split(" ");
      const by = (row) => Number(row.dataset[field]);
      list.append(...(field ? [...rows].sort((a, b) => sign * (by(a) - by(b))) : rows));
    };
    [verdict, backend].forEach((select) => select.addEventListener("change", apply));
    order.addEventListener("change", sort);
    input.addEventListener("input", apply);
    all.addEventListener("click", () => {
      const shown = rows.filter((row) => !row.hidden);
      const open = shown.some((row) => !row.open);
      shown.forEach((row) => { row.open = open; });
      all.textContent = open ? "Close all" : "Open all";
    });
    list.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step || event.target.tagName !== "SUMMARY") return;
      const shown = [...list.querySelectorAll(":scope > details:not([hidden]) > summary")];
      event.preventDefault();
      shown[shown.indexOf(event.target) + step]?.focus();
    });
    // Links such as #methods=failed show the methods of a verdict, and #method-encode opens one.
    const fromLink = () => {
      const place = decodeURIComponent(location.hash.slice(1));
      const [name, word] = place.split("=");
      const row = rows.find((each) => each.id === place);
      if (row) row.open = true;
      if (name !== "methods" || !word) return;
      verdict.value = word;
      apply();
      list.parentElement.scrollIntoView();
    };
    addEventListener("hashchange", fromLink);
    list.before(bar);
    apply();
    fromLink();
  }

  function copyable(code) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy: ${code.textContent}`);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      button.textContent = "Copied";
    });
    code.after(button);
  }

  // Before the browser searches, all rows are there to be found; closed details open by themselves.
  addEventListener("keydown", (event) => {
    if (event.key === "F3" || ((event.ctrlKey || event.metaKey) && event.key === "f")) {
      document.querySelectorAll(".short").forEach((holder) => holder.classList.remove("short"));
    }
  });

  document.querySelectorAll(".methods").forEach(methods);
  document.querySelectorAll(".copied").forEach(copyable);
  document.querySelectorAll(".table").forEach((holder) => {
    const table = holder.querySelector("table");
    sortable(holder, table);
    shortened(holder, table);
    filterable(holder, table);
  });
  document.querySelectorAll("figure").forEach(tappable);
})();
