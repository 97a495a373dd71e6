// Chunks of `--compression rigid`: mdio's library of codecs (mdio/native/codecs), which `make
// web/rigid.wasm` compiles to WebAssembly.
const url = new URL("./rigid.wasm", import.meta.url);
let compiled;

async function bytesOf() {
  if (url.protocol === "file:") return (await import("node:fs/promises")).readFile(url);
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url} is not there (${response.status}): make web/rigid.wasm builds it`);
  return response.arrayBuffer();
}

async function compile() {
  try {
    return await WebAssembly.compile(await bytesOf());
  } catch (error) {
    compiled = undefined; // so that it is asked for again
    throw error;
  }
}

// Returns the positions of a chunk, (frames, atoms, 3) float32, angstrom. `scale`: step, or an XTC's
// precision. Each chunk has an instance, and so memory, of its own.
export async function decodeRigid(description, data, nFrames, nAtoms, scale, xtc) {
  const fail = (text) => {
    const bytes = new Uint8Array(exported.memory.buffer, text);
    throw new Error(new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0))));
  };
  const { exports: exported } = await WebAssembly.instantiate(await (compiled ??= compile()), { mdio: { fail } });
  exported._initialize();
  const room = (nbytes) => {
    const at = exported.malloc(nbytes);
    if (!at) throw new Error(`there is no memory for ${nbytes} bytes of a chunk`);
    return at;
  };
  const filled = (bytes) => {
    const at = room(bytes.length);
    new Uint8Array(exported.memory.buffer).set(bytes, at);
    return at;
  };
  const memory = exported.mdio_memory_new();
  const size = 3 * nFrames * nAtoms;
  const [described, stored, out] = [filled(description), filled(data), room(4 * size)];
  // The structs of mdio_codecs.h, one after the other.
  const [from, coding, selection, output] = [0, 48, 64, 88];
  const structs = room(112);
  const view = new DataView(exported.memory.buffer, structs, 112);
  const put = (at, ...numbers) => numbers.forEach((n, i) => view.setBigInt64(at + 8 * i, BigInt(n), true));
  put(from, described, description.length, stored, data.length, nFrames, nAtoms);
  view.setFloat64(coding, scale, true);
  put(coding + 8, xtc ? 1 : 0);
  put(selection, 0, 0, nFrames);
  put(output, out, nAtoms, 12 * nAtoms);
  const at = [from, coding, selection, output].map((offset) => structs + offset);
  if (exported.mdio_rigid_decode(memory, ...at) !== 0) fail(exported.mdio_message(memory));
  return new Float32Array(exported.memory.buffer, out, size).slice();
}
