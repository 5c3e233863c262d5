// What pointing and zooming show. Everything else is drawn already, so the page is whole without this.
"use strict";
(() => {
  const tip = document.getElementById("tip");
  const UNITS = {
    time: [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]],
    size: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
  };

  function written(value, kind) {
    const table = UNITS[kind];
    if (!table) return String(+value.toPrecision(5));
    const [factor, unit] = table.find((pair) => Math.abs(value) >= pair[0]) || table[table.length - 1];
    return +(value / factor).toPrecision(4) + " " + unit;
  }

  function show(text, event) {
    tip.textContent = text;
    tip.style.display = "block";
    tip.style.left = "0"; // else the edge of the screen would fold the text before it is measured
    const box = tip.getBoundingClientRect();
    const below = event.clientY + 16 + box.height < innerHeight;
    tip.style.left = Math.max(4, Math.min(event.clientX + 12, document.documentElement.clientWidth - box.width - 6)) + "px";
    tip.style.top = (below ? event.clientY + 16 : Math.max(4, event.clientY - box.height - 12)) + "px";
  }

  function hide() { tip.style.display = "none"; }

  // A finger's touch arrives as a click as well, so both are heard.
  function listen(node, tell) {
    for (const name of ["pointermove", "pointerdown"]) node.addEventListener(name, tell);
    node.addEventListener("pointerleave", hide);
  }

  // Where an event lies, in the units of a drawing.
  function inside(svg, event) {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    return [(event.clientX - box.left) * view.width / box.width, (event.clientY - box.top) * view.height / box.height];
  }

  function plot(svg, data) {
    const near = svg.querySelector(".near");
    listen(svg, (event) => {
      const [x, y] = inside(svg, event);
      let best = null, least = 900;
      for (const one of data.series) {
        for (let i = 0; i < one.at.length; i += 2) {
          const distance = (one.at[i] - x) ** 2 + (one.at[i + 1] - y) ** 2;
          if (distance < least) { least = distance; best = [one, i]; }
        }
      }
      if (!best) { near.innerHTML = ""; hide(); return; }
      const [one, i] = best, at = one.at;
      near.innerHTML = `<circle cx="${at[i]}" cy="${at[i + 1]}" r="6"/>`;
      const same = data.series.filter((other) => {
        for (let j = 0; j < other.at.length; j += 2) {
          if (Math.abs(other.at[j] - at[i]) < 1 && Math.abs(other.at[j + 1] - at[i + 1]) < 1) return true;
        }
        return false;
      });
      const names = same.map((other) => other.name).join("\n");
      const [nameX, kindX] = data.x, [nameY, kindY] = data.y;
      show(`${names}\n${nameX.split(",")[0]}: ${written(one.of[i], kindX)}\n${nameY}: ${written(one.of[i + 1], kindY)}`, event);
    });
    svg.addEventListener("pointerleave", () => { near.innerHTML = ""; });
  }

  const KINDS = ["compute", "exposed", "wait", "wire", "lane"];
  const NAMES = ["compute", "exposed communication", "wait", "in flight", "lane"];

  function timeline(svg, data) {
    const size = data.timeline, right = 8;
    let from = 0, until = data.length, width = 720;

    function ticks(scale) {
      const about = Math.max(2, Math.floor(width / 110)), rough = (until - from) / about / 1e9;
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough * 0.999);
      const largest = until / 1e9, [factor, unit] = UNITS.time.find((pair) => largest >= pair[0]) || UNITS.time[3];
      let drawn = "";
      for (let i = Math.ceil(from / 1e9 / step - 1e-9); i * step * 1e9 <= until; i++) {
        const x = (size.left + (i * step * 1e9 - from) * scale).toFixed(1);
        drawn += `<line x1="${x}" x2="${x}" y1="${size.top - 4}" y2="${size.height}" class="grid"/>`;
        if (x < width - 30) drawn += `<text x="${x}" y="12" text-anchor="middle">${+(i * step / factor).toPrecision(5)} ${unit}</text>`;
      }
      return drawn;
    }

    function band(items, y, height, scale) {
      const paths = KINDS.map(() => "");
      for (let i = 0; i < items.length; i += 4) {
        const begin = Math.max(items[i], from), end = Math.min(items[i] + items[i + 1], until);
        if (begin >= end) continue;
        const x = size.left + (begin - from) * scale, w = Math.max((end - begin) * scale, 0.4).toFixed(1);
        paths[items[i + 2]] += `M${x.toFixed(1)} ${y}h${w}v${height}h-${w}z`;
      }
      return paths.map((path, kind) => path && `<path d="${path}" class="k-${KINDS[kind]}"/>`).join("");
    }

    function steps(items, y, scale) {
      let path = "";
      for (let i = 0; i < items.length; i += 4) {
        if (items[i + 2] === -1 && items[i] >= from && items[i] <= until) path += `M${(size.left + (items[i] - from) * scale).toFixed(1)} ${y}v${size.main + 2}`;
      }
      return path && `<path d="${path}" class="step"/>`;
    }

    function draw(paper) {
      width = paper ? 720 : Math.max(300, Math.round(svg.getBoundingClientRect().width) || 720);
      const scale = (width - size.left - right) / (until - from);
      let drawn = ticks(scale);
      const label = document.createElement("b");
      data.rows.forEach((row, i) => {
        const top = size.top + i * size.pitch, [main, wire, lanes, marks] = row.bands;
        label.textContent = row.label;
        if (i % size.every === 0) drawn += `<text x="${size.left - 6}" y="${top + size.main - 1}" text-anchor="end">${label.innerHTML}</text>`;
        drawn += band(main, top, size.main, scale) + band(wire, top + size.main, size.thin, scale);
        drawn += band(lanes, top + size.main + size.thin, size.thin, scale) + steps(marks, top - 1, scale);
      });
      svg.setAttribute("viewBox", `0 0 ${width} ${size.height}`);
      svg.innerHTML = drawn;
    }

    function under(items, moment, slack) {
      const found = [];
      for (let i = 0; i < items.length; i += 4) {
        if (items[i] - slack <= moment && moment <= items[i] + items[i + 1] + slack) found.push(i);
      }
      // What is short lies on top of what is long.
      return found.sort((a, b) => items[a + 1] - items[b + 1]).slice(0, 4);
    }

    listen(svg, (event) => {
      const [x, y] = inside(svg, event), i = Math.floor((y - size.top) / size.pitch), row = data.rows[i];
      if (!row || x < size.left) { hide(); return; }
      const scale = (width - size.left - right) / (until - from), moment = from + (x - size.left) / scale;
      const depth = y - size.top - i * size.pitch;
      const which = depth < size.main ? 0 : depth < size.main + size.thin || !row.bands[2].length ? 1 : 2;
      let items = row.bands[which], found = under(items, moment, 1.5 / scale);
      if (!found.length && which) { items = row.bands[0]; found = under(items, moment, 1.5 / scale); }
      const at = under(row.bands[3], moment, 0).map((j) => data.tips[row.bands[3][j + 3]]).join(", ");
      const told = (band) => (j) => {
        const name = NAMES[band[j + 2]], what = data.tips[band[j + 3]];
        const prefix = what === name || band[j + 2] > 3 ? "" : name + ": ";
        return `${prefix}${what} (${written(band[j + 1] / 1e9, "time")})`;
      };
      const lines = found.map(told(items));
      // What a rank did says no bytes; what was in flight meanwhile does.
      if (items === row.bands[0]) lines.push(...under(row.bands[1], moment, 0).slice(0, 2).map(told(row.bands[1])));
      show([row.name + (at ? ", " + at : ""), ...lines, "at " + written(moment / 1e9, "time")].join("\n"), event);
    });

    function zoom(factor, shift) {
      const middle = (from + until) / 2 + shift * (until - from);
      const half = Math.min(data.length, Math.max((until - from) * factor, data.length / 2000, 10)) / 2;
      from = Math.max(0, Math.min(middle - half, data.length - 2 * half));
      until = from + 2 * half;
      draw();
    }

    const bar = svg.parentNode.querySelector(".zoom");
    const buttons = [["+", "zoom in", 0.5, 0], ["−", "zoom out", 2, 0], ["◀", "earlier", 1, -0.4], ["▶", "later", 1, 0.4], ["all", "whole window", 1e9, 0]];
    for (const [text, title, factor, shift] of buttons) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.title = title;
      button.setAttribute("aria-label", title);
      button.addEventListener("click", () => zoom(factor, shift));
      bar.append(button);
    }
    let before = Math.round(svg.getBoundingClientRect().width);
    if (before) draw();
    if (window.ResizeObserver) {
      new ResizeObserver(() => {
        const now = Math.round(svg.getBoundingClientRect().width);
        if (now && now !== before) { before = now; requestAnimationFrame(() => draw()); }
      }).observe(svg.parentNode);
    }
    addEventListener("beforeprint", () => { from = 0; until = data.length; draw(true); });
    addEventListener("afterprint", () => draw());
  }

  for (const node of document.querySelectorAll('script[type="application/json"]')) {
    const svg = node.previousElementSibling, data = JSON.parse(node.textContent);
    if (data.timeline) timeline(svg, data); else plot(svg, data);
  }
  for (const node of document.querySelectorAll("[data-t]")) listen(node, (event) => show(node.dataset.t, event));
  addEventListener("scroll", hide, { passive: true });

  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of folded) one.open = false; });
})();
