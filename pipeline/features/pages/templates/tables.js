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
    if (original.length >= FILTERED_FROM) holder.prepend(select);
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
    holder.prepend(label);
    // A link such as index.html#actions=vision shows the rows with that word.
    const fromLink = () => {
      const [name, words] = decodeURIComponent(location.hash.slice(1)).split("=");
      if (name === holder.id && words) {
        input.value = words;
        apply();
        holder.scrollIntoView();
      }
    };
    addEventListener("hashchange", fromLink);
    apply();
    fromLink();
  }

  function shortened(holder, table) {
    const rows = table.tBodies[0].rows.length;
    if (rows < FILTERED_FROM) return;
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

  document.querySelectorAll(".table").forEach((holder) => {
    const table = holder.querySelector("table");
    sortable(holder, table);
    shortened(holder, table);
    filterable(holder, table);
  });
  document.querySelectorAll("figure").forEach(tappable);
})();
