"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const byId = (id) => document.getElementById(id);

  // Figures: drawn in the colours of a light page, which a dark one exchanges.
  const recolour = (value) => {
    if (typeof value === "string") return data.dark[value] || value;
    if (Array.isArray(value)) return value.map(recolour);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, recolour(each)]));
    return value;
  };
  const hovers = matchMedia("(hover: hover)").matches;
  const settings = { responsive: true, displaylogo: false, displayModeBar: hovers ? "hover" : false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

  function draw(plot, width) {
    const { data: traces, layout } = data.charts[plot.dataset.chart];
    const dark = root.dataset.theme === "dark";
    const copy = JSON.parse(JSON.stringify({ traces, layout }));
    const shown = dark ? recolour(copy) : copy;
    if (width) Object.assign(shown.layout, { width, autosize: false });
    Plotly.react(plot, shown.traces, shown.layout, settings);
    explain(plot, shown.traces);
  }

  // A legend that wraps, whose entries are switches.
  const marks = {
    circle: '<circle cx="14" cy="6" r="4"/>',
    square: '<rect x="10" y="2" width="8" height="8"/>',
    diamond: '<path d="M14 1 19 6 14 11 9 6z"/>',
    "triangle-up": '<path d="M14 1.5 18.5 10h-9z"/>',
    x: '<path d="M10.5 2.5l7 7m0-7l-7 7" stroke-width="3"/>',
  };
  const dashes = { dash: "6 3", dot: "2 3", dashdot: "6 3 2 3" };
  function sample(trace) {
    if (trace.type === "bar") {
      const hatch = trace.marker.pattern ? '<path d="M9 12 15 0M13 12 19 0" stroke="var(--page)" stroke-width="1.5"/>' : "";
      return `<rect x="8" width="12" height="12" fill="${trace.marker.color}"/>${hatch}`;
    }
    const ink = trace.line.color, dash = dashes[trace.line.dash];
    const mark = trace.marker ? `<g fill="${ink}" stroke="${ink}" stroke-width="0">${marks[trace.marker.symbol]}</g>` : "";
    return `<path d="M0 6H28" stroke="${ink}" stroke-width="2"${dash ? ` stroke-dasharray="${dash}"` : ""}/>${mark}`;
  }
  function explain(plot, traces) {
    const legend = plot.parentElement.querySelector(".legend");
    legend.replaceChildren();
    traces.forEach((trace, number) => {
      if (trace.showlegend === false || traces.length === 1) return;
      const button = document.createElement("button");
      button.type = "button";
      button.innerHTML = `<svg width="28" height="12" aria-hidden="true">${sample(trace)}</svg>`;
      button.append(trace.name);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        Plotly.restyle(plot, { visible: on }, [number]);
      });
      const entry = document.createElement("li");
      entry.append(button);
      legend.append(entry);
    });
  }
  const drawAll = (width) => document.querySelectorAll(".plot").forEach((plot) => draw(plot, width));

  document.querySelectorAll("select[data-chooses]").forEach((select) =>
    select.addEventListener("change", () => {
      const plot = byId(select.dataset.chooses);
      const chart = data.charts[select.value];
      const figure = plot.closest("figure");
      plot.dataset.chart = select.value;
      plot.setAttribute("aria-label", `${figure.querySelector("h3").textContent}. ${chart.says}`);
      figure.querySelector(".says").textContent = chart.says;
      figure.querySelectorAll(".files a").forEach((link) => {
        link.href = `figures/${select.value}.${link.textContent.toLowerCase()}`;
      });
      draw(plot);
    })
  );

  // Colours: as the system has them, or as the reader wants them.
  const modes = ["auto", "light", "dark"];
  let mode = "auto";
  try { mode = localStorage.getItem("colours") || "auto"; } catch { /* a file may not remember */ }
  function paint() {
    const dark = mode === "dark" || (mode === "auto" && system.matches);
    root.dataset.theme = dark ? "dark" : "light";
    const button = byId("theme");
    button.textContent = `Colours: ${mode}`;
    button.setAttribute("aria-label", `Colours: ${mode === "auto" ? "as the system has them" : mode}`);
    drawAll();
  }
  byId("theme").addEventListener("click", () => {
    mode = modes[(modes.indexOf(mode) + 1) % modes.length];
    try { localStorage.setItem("colours", mode); } catch { /* as above */ }
    paint();
  });
  system.addEventListener("change", paint);
  const closed = [];
  addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    document.querySelectorAll("details:not([open])").forEach((each) => { each.open = true; closed.push(each); });
    drawAll(680);
  });
  addEventListener("afterprint", () => {
    closed.splice(0).forEach((each) => { each.open = false; });
    paint();
  });


  // Tables: a click on a heading sorts, another one the other way round; what is empty stays last.
  document.querySelectorAll("table").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) =>
      head.querySelector("button").addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        const numeric = head.classList.contains("number");
        const value = (row) => row.cells[column].dataset.value;
        const rows = [...table.tBodies[0].rows].sort((a, b) => {
          const [x, y] = [value(a), value(b)];
          if (x === "" || y === "") return (x === "") - (y === "");
          const order = numeric ? x - y : x.localeCompare(y, "en", { numeric: true });
          return up ? order : -order;
        });
        table.tBodies[0].append(...rows);
        heads.forEach((each) => each.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
      })
    );
  });

  // Two pictures over each other.
  if (byId("compare")) {
    const stage = byId("stage"), left = byId("left-picture"), right = byId("right-picture");
    const slider = byId("slider"), zoom = byId("zoom");
    let x = 0, y = 0; // What lies in the corner, as a share of the picture.
    function place() {
      const scale = +zoom.value, most = 1 - 1 / scale, cut = +slider.value;
      x = Math.min(most, Math.max(0, x));
      y = Math.min(most, Math.max(0, y));
      const moved = `scale(${scale}) translate(${-100 * x}%, ${-100 * y}%)`;
      left.style.transform = right.style.transform = moved;
      // The line is where it is on the stage, whatever part of the picture lies there.
      const inside = 100 * x + cut / scale;
      left.style.clipPath = `inset(0 ${100 - inside}% 0 0)`;
      stage.querySelector(".edge").style.left = `${cut}%`;
      stage.classList.toggle("zoomed", scale > 1);
    }
    function choose() {
      for (const [picture, select] of [[left, byId("before")], [right, byId("after")]]) {
        picture.src = data.pictures[select.value];
        picture.alt = select.selectedOptions[0].textContent;
      }
    }
    slider.addEventListener("input", place);
    let last = 1;
    zoom.addEventListener("input", () => {
      const scale = +zoom.value; // About the middle of what is seen.
      x += 0.5 / last - 0.5 / scale;
      y += 0.5 / last - 0.5 / scale;
      last = scale;
      place();
    });
    stage.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!step || +zoom.value === 1) return;
      event.preventDefault();
      x += (0.1 * step[0]) / zoom.value;
      y += (0.1 * step[1]) / zoom.value;
      place();
    });
    stage.addEventListener("pointerdown", (event) => {
      if (+zoom.value === 1) return;
      stage.setPointerCapture(event.pointerId);
      stage.onpointermove = (move) => {
        x -= move.movementX / stage.clientWidth / zoom.value;
        y -= move.movementY / stage.clientHeight / zoom.value;
        place();
      };
    });
    for (const end of ["pointerup", "pointercancel"])
      stage.addEventListener(end, () => { stage.onpointermove = null; });
    byId("before").addEventListener("change", choose);
    byId("after").addEventListener("change", choose);
    choose();
    place();
  }
  paint();
})();
