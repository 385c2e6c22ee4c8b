// A chart with a logarithmic axis: values that grow or vanish by powers of ten are what it is about.

const SVG = "http://www.w3.org/2000/svg";
const [LEFT, RIGHT, TOP, BOTTOM] = [44, 8, 6, 22];

function add(parent, name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
}

const isShown = (value) => Number.isFinite(value) && value > 0;

// `lines` have a class and values; the horizontal axis is `most` values long.
export function draw(svg, lines, label, most) {
  const { width, height } = svg.getBoundingClientRect();
  svg.replaceChildren();
  const shown = lines.flatMap((line) => [...line.values].filter(isShown));
  if (!shown.length) return;
  const low = Math.floor(Math.log10(Math.min(...shown)));
  const high = Math.max(Math.ceil(Math.log10(Math.max(...shown))), low + 1);
  const length = Math.max(most ?? 0, ...lines.map((line) => line.values.length), 2);
  const x = (i) => LEFT + ((width - LEFT - RIGHT) * i) / (length - 1);
  const y = (value) => TOP + ((height - TOP - BOTTOM) * (high - Math.log10(value))) / (high - low);
  const every = Math.ceil((high - low) / 6);
  for (let power = low; power <= high; power += every) {
    const at = y(10 ** power);
    add(svg, "line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at });
    add(svg, "text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, `1e${power}`);
  }
  for (const i of [0, Math.floor((length - 1) / 2), length - 1]) {
    const anchor = i === 0 ? "start" : i === length - 1 ? "end" : "middle";
    add(svg, "text", { x: x(i), y: height - 4, "text-anchor": anchor }, i ? `${i + 1}` : `${label} 1`);
  }
  for (const { name, values } of lines) {
    let part = [];
    const end = () => part.length && add(svg, "polyline", { class: name, points: part.join(" ") });
    values.forEach((value, i) => {
      if (isShown(value)) part.push(`${x(i).toFixed(1)},${y(value).toFixed(1)}`);
      else end(), (part = []);
    });
    end();
  }
}
