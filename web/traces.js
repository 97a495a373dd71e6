// Draws a trajectory on the canvas of index.html, frame by frame: C-alpha traces, or all atoms as dots.
import { Trajectory } from "./trajectory.js";

const LONGEST_BOND = 4.5; // angstrom; C-alphas further apart belong to different chains
const FRAMES_PER_S = 25;
const MOST_TRACED = 5000; // atoms; of more there are dots

const [canvas, slider, button, label, status, cost] = ["canvas", "input", "button", "output", "[role=status]", "#cost"]
  .map((name) => document.querySelector(name));
const asked = new URLSearchParams(location.search);
const url = new URL(asked.get("zarr") ?? "md.zarr", location.href).href;
const angles = { x: 0.4, y: 0.6 };
let trajectory, shown, scale;

function turned([x, y, z]) {
  const [sx, cx, sy, cy] = [Math.sin(angles.x), Math.cos(angles.x), Math.sin(angles.y), Math.cos(angles.y)];
  const across = x * cy + z * sy;
  const depth = z * cy - x * sy;
  return [across, y * cx - depth * sx, y * sx + depth * cx];
}

function draw(positions) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight].map((n) => n * devicePixelRatio);
  if (canvas.width !== Math.round(width)) [canvas.width, canvas.height] = [Math.round(width), Math.round(height)];
  const n = positions.length / 3;
  const middle = [0, 1, 2].map((axis) => {
    let sum = 0;
    for (let i = 0; i < n; i++) sum += positions[3 * i + axis];
    return sum / n;
  });
  const atoms = Array.from({ length: n }, (_, i) => middle.map((m, axis) => positions[3 * i + axis] - m));
  scale ??= 1.1 * Math.max(...atoms.map((r) => Math.hypot(...r))); // of the first frame, for all
  const zoom = Math.min(width, height) / 2 / scale;
  const points = atoms.map(turned);
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (n > MOST_TRACED) {
    for (const [x, y, z] of points) {
      const near = 0.5 + z / 2 / scale;
      context.fillStyle = `hsl(${200 + 100 * near} 70% 50% / ${0.1 + 0.5 * near})`;
      context.fillRect(width / 2 + zoom * x, height / 2 - zoom * y, 1 + 2 * near, 1 + 2 * near);
    }
    return;
  }
  context.lineCap = "round";
  const bonds = [];
  for (let i = 1; i < n; i++) {
    const far = Math.hypot(...atoms[i].map((x, axis) => x - atoms[i - 1][axis]));
    if (far < LONGEST_BOND) bonds.push([points[i - 1][2] + points[i][2], i]);
  }
  bonds.sort((a, b) => a[0] - b[0]); // the nearest last
  for (const [depth, i] of bonds) {
    const near = 0.5 + depth / 4 / scale;
    context.strokeStyle = `hsl(${(300 * i) / n} 70% 50% / ${0.35 + 0.65 * near})`;
    context.lineWidth = (1.5 + 3 * near) * devicePixelRatio;
    context.beginPath();
    for (const [x, y] of [points[i - 1], points[i]]) context.lineTo(width / 2 + zoom * x, height / 2 - zoom * y);
    context.stroke();
  }
}

async function show(number) {
  slider.value = number;
  const positions = await trajectory.frame(number);
  if (Number(slider.value) !== number) return; // another was asked for meanwhile
  shown = positions;
  draw(shown);
  label.value = `frame ${number} of ${trajectory.nFrames}, ${trajectory.times[number].toFixed(0)} ps`;
  cost.textContent = `${(trajectory.nbytes / trajectory.nReceived / 1000).toFixed(1)} kB a frame`;
}

async function play() {
  const playing = (button.textContent = button.textContent === "Play" ? "Stop" : "Play") === "Stop";
  while (playing && button.textContent === "Stop") {
    await show((Number(slider.value) + 1) % trajectory.nFrames);
    await new Promise((done) => setTimeout(done, 1000 / FRAMES_PER_S));
  }
}

const failed = (error) => (status.textContent = `${url}: ${error.cause?.message ?? error.message}`);
try {
  trajectory = await Trajectory.open(url, asked.get("group") ?? "ca");
  slider.max = trajectory.nFrames - 1;
  await show(Number(asked.get("frame") ?? 0));
  status.textContent = `${trajectory.nFrames} frames of ${trajectory.nAtoms} atoms`;
  slider.oninput = () => show(Number(slider.value)).catch(failed);
  button.onclick = () => play().catch(failed);
  canvas.onpointermove = (event) => {
    if (!event.buttons) return;
    angles.y += event.movementX / 150;
    angles.x += event.movementY / 150;
    draw(shown);
  };
  onresize = () => draw(shown);
} catch (error) {
  failed(error);
}
