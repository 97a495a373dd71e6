// A Zarr tree of mdio, read from any web server that serves its files.
import * as zarr from "zarrita";
import { Crc32c } from "./crc32c.js";
import { Quantised } from "./quantised.js";

zarr.registry.set("crc32c", () => Crc32c);
zarr.registry.set("mdio.quantised", () => Quantised);

// Gives the bytes asked for also where a server ignores ranges, as Python's own does; `count` gets how many.
async function fetchRange(request, count) {
  const response = await fetch(request);
  const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.get("Range") ?? "");
  if (!range || response.status !== 200) {
    if (response.ok && request.method !== "HEAD") count(Number(response.headers.get("Content-Length")));
    return response;
  }
  const bytes = (await response.arrayBuffer()).slice(Number(range[1]), Number(range[2]) + 1);
  count(bytes.byteLength);
  return new Response(bytes);
}

export class Trajectory {
  // `url`: of the folder NAME.zarr. `group`: "trajectory", all atoms, or one made by --group.
  static async open(url, group = "trajectory") {
    const made = new Trajectory();
    const count = (n) => (made.nbytes += n);
    const root = zarr.root(new zarr.FetchStore(url, { fetch: (request) => fetchRange(request, count) }));
    const read = async (path) => zarr.open.v3(root.resolve(`particles/${path}`), { kind: "array" });
    made.positions = await read(`${group}/position/value`);
    [made.nFrames, made.nAtoms] = made.positions.shape;
    made.times = (await zarr.get(await read("trajectory/position/time"))).data; // ps
    made.runs = new Map();
    made.nbytes = 0; // asked for, for frames, and how many these are
    made.nReceived = 0;
    return made;
  }

  // Returns the positions of a frame, (atoms, 3) float32, angstrom; the next chunk comes meanwhile.
  async frame(number) {
    if (!Number.isInteger(number) || number < 0 || number >= this.nFrames)
      throw new RangeError(`there is no frame ${number}: give a whole number from 0 to ${this.nFrames - 1}`);
    const nInChunk = this.positions.chunks[0];
    const run = Math.floor(number / nInChunk);
    const wanted = this.run(run);
    if ((run + 1) * nInChunk < this.nFrames) this.run(run + 1).catch(() => {});
    for (const key of this.runs.keys()) if (key !== run && key !== run + 1) this.runs.delete(key);
    const size = 3 * this.nAtoms;
    const at = (number - run * nInChunk) * size;
    return (await wanted).subarray(at, at + size);
  }

  run(number) {
    if (!this.runs.has(number)) {
      const nInChunk = this.positions.chunks[0];
      const last = Math.min((number + 1) * nInChunk, this.nFrames);
      const reading = zarr.get(this.positions, [zarr.slice(number * nInChunk, last), null, null]);
      const run = reading.then(({ data }) => {
        this.nReceived += last - number * nInChunk;
        return data;
      });
      run.catch(() => this.runs.delete(number)); // so that it is asked for again
      this.runs.set(number, run);
    }
    return this.runs.get(number);
  }
}
