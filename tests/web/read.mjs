// Prints what a browser's page would get of a tree: node read.mjs URL GROUP FILE
import { writeFileSync } from "node:fs";
import { Trajectory } from "../../web/trajectory.js";

const [url, group, file] = process.argv.slice(2);
const trajectory = await Trajectory.open(url, group);
const frames = [];
for (let i = 0; i < trajectory.nFrames; i++) frames.push(Buffer.from((await trajectory.frame(i)).slice().buffer));
writeFileSync(file, Buffer.concat(frames));
console.log(JSON.stringify({ shape: [trajectory.nFrames, trajectory.nAtoms, 3], times: [...trajectory.times] }));
