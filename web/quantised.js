// Decodes `mdio.quantised`, the codec of Zarr trees whose positions are integers: of an XTC, or of
// `--precision`. layouts/codecs/quantised.py has the header, mdio/core/kernels/packed.py and
// neighbours.py the numbers behind it, docs/rigid.md those of `rigid`.
import Blosc from "numcodecs/blosc";
import { decodeRigid } from "./rigid.js";

const [RAW, XTC, ALONG_ATOMS, PACKED, RIGID] = [0, 2, 2, 4, 8];
const [HEADER_NBYTES, BACK, GROUP, BEHIND] = [32, 4, 32, 16];

export class Quantised {
  kind = "array_to_bytes";

  static fromConfig(_configuration, { shape }) {
    return Object.assign(new Quantised(), { shape });
  }

  async decode(bytes) {
    const [nFrames, nAtoms, nAxes] = this.shape;
    const data = await decodeChunk(bytes, nFrames, nAtoms);
    return { data, shape: this.shape, stride: [nAtoms * nAxes, nAxes, 1] };
  }
}

// Returns the positions of a chunk, (frames, atoms, 3) float32, angstrom.
export async function decodeChunk(bytes, nFrames, nAtoms) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (view.byteLength < HEADER_NBYTES || view.getUint32(0, true) !== 0x3171646d) {
    throw new Error("no chunk of mdio.quantised: it should begin with mdq1");
  }
  const [mode, itemsize, scale] = [view.getUint8(4), view.getUint8(5), view.getFloat64(16, true)];
  const [frames, atoms] = [view.getUint32(8, true), view.getUint32(12, true)];
  const ends = [24, 28].map((at) => view.getUint32(at, true));
  if (mode > RIGID + XTC) throw new Error(`a chunk of mode ${mode}, which is made by a newer mdio`);
  if (frames !== nFrames || atoms !== nAtoms || HEADER_NBYTES + ends[0] + ends[1] !== bytes.length) {
    throw new Error(`a chunk of ${frames} frames of ${atoms} atoms in ${bytes.length} bytes, not ${nFrames} of ${nAtoms}`);
  }
  const head = bytes.subarray(HEADER_NBYTES, HEADER_NBYTES + ends[0]);
  const rest = bytes.subarray(HEADER_NBYTES + ends[0]);
  const n = 3 * nAtoms;
  if (mode === RAW) return (await unblosc(head, Float32Array, n * nFrames)).slice();
  if (mode > RIGID) {
    const plain = await new Blosc().decode(head); // filled up with zeros, of which `itemsize` tells
    const description = plain.subarray(0, Math.max(0, plain.length - itemsize));
    return decodeRigid(description, rest, nFrames, nAtoms, scale, mode % 2 === 0);
  }
  const packed = mode > XTC + ALONG_ATOMS;
  const alongAtoms = Boolean((mode - 1) & ALONG_ATOMS);
  const integers = new Int32Array(n * nFrames);
  const kept = alongAtoms ? await unblosc(head, Uint8Array, nAtoms) : null;
  if (packed) {
    unpack(rest, nFrames, n, integers);
    if (!alongAtoms) for (let i = 3; i < n; i++) integers[i] += integers[i - 3];
  } else {
    const begin = alongAtoms ? 0 : n; // along the frames the first one lies in the first part
    if (begin) unfold(await unblosc(head, Uint32Array, n), integers, 0);
    const Type = itemsize === 2 ? Uint16Array : Uint32Array;
    if (rest.length) unfold(await unblosc(rest, Type, n * nFrames - begin), integers, begin);
  }
  if (alongAtoms) sumNeighbours(integers, kept);
  else for (let i = n; i < integers.length; i++) integers[i] += integers[i - n];
  return toFloats(integers, scale, mode % 2 === 0);
}

async function unblosc(part, Type, count) {
  const size = Math.ceil(count / 8) * 8 * Type.BYTES_PER_ELEMENT;
  const plain = await new Blosc().decode(part);
  if (plain.length !== size) throw new Error(`a part has ${plain.length} bytes, expected ${size}`);
  return new Type(plain.buffer, plain.byteOffset, count);
}

function unfold(folded, out, at) {
  for (let i = 0; i < folded.length; i++) out[at + i] = (folded[i] >>> 1) ^ -(folded[i] & 1);
}

// Rows of `n` integers in groups of 32, each with as many bits as a byte before all groups says.
function unpack(data, nRows, n, out) {
  const nGroups = Math.ceil(n / GROUP);
  const filled = new Uint32Array(Math.ceil((data.length + 8) / 4));
  const bytes = new Uint8Array(filled.buffer);
  bytes.set(data);
  let at = nRows * nGroups; // the byte where a group begins
  for (let row = 0; row < nRows; row++) {
    for (let group = 0; group < nGroups; group++) {
      const width = bytes[row * nGroups + group];
      const [first, last] = [group * GROUP, Math.min((group + 1) * GROUP, n)];
      const end = at + Math.ceil((last - first) / 8) * width;
      if (width > 32 || end + BEHIND > data.length) throw new Error("packed integers end too early");
      const mask = width === 32 ? -1 : (1 << width) - 1;
      for (let i = first, bit = 8 * (at & 3); width && i < last; i++, bit += width) {
        const [word, shift] = [(at >>> 2) + (bit >>> 5), bit & 31];
        let folded = filled[word] >>> shift;
        if (shift + width > 32) folded |= filled[word + 1] << (32 - shift);
        folded &= mask;
        out[row * n + i] = (folded >>> 1) ^ -(folded & 1);
      }
      at = end;
    }
  }
  if (at + BEHIND !== data.length) throw new Error("packed integers do not end where they should");
}

// Each atom differs from one of the four before it; they lie sorted by class.
function sumNeighbours(integers, kept) {
  const nAtoms = kept.length;
  const order = new Uint32Array(kept.keys()).sort((a, b) => (kept[a] >> 2) - (kept[b] >> 2) || a - b);
  const sums = new Int32Array(3 * (BACK + nAtoms)); // what is before the first atom is the origin
  for (let begin = 0; begin < integers.length; begin += 3 * nAtoms) {
    for (let place = 0; place < nAtoms; place++) {
      const [from, to] = [begin + 3 * place, 3 * (BACK + order[place])];
      for (let axis = 0; axis < 3; axis++) sums[to + axis] = integers[from + axis];
    }
    for (let atom = 0; atom < nAtoms; atom++) {
      const at = 3 * (BACK + atom);
      const other = at - 3 * (1 + (kept[atom] & 3));
      for (let axis = 0; axis < 3; axis++) sums[at + axis] += sums[other + axis];
    }
    integers.set(sums.subarray(3 * BACK), begin);
  }
}

// The arithmetic of XTC is of float32, one operation at a time; that of a step is of float64.
function toFloats(integers, scale, xtc) {
  const inverse = Math.fround(1 / Math.fround(scale));
  const floats = new Float32Array(integers.length);
  for (let i = 0; i < floats.length; i++) {
    floats[i] = xtc ? Math.fround(Math.fround(integers[i]) * inverse) * 10 : integers[i] * scale;
  }
  return floats;
}
