// mdio._xtc: arrays in, kernels called without the GIL. mdio/core/xtc.py checks shapes and
// documents; nothing else calls this.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "../codecs/cpu.h"
#include "bits.h"
#include "file.h"
#include "run.h"

namespace py = pybind11;
using namespace mdio::xtc;

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style>;  // never converted: see `noconvert` below

py::tuple scan_file(int fd, std::int64_t nbytes) {
    Frames frames;
    {
        py::gil_scoped_release release;
        frames = scan(fd, nbytes);
    }
    py::array_t<std::int64_t> offsets(static_cast<py::ssize_t>(frames.offsets.size()),
                                      frames.offsets.data());
    return py::make_tuple(offsets, frames.n_atoms);
}

void headers(int fd, std::int64_t first, const Array<std::int64_t>& offsets, std::int64_t n_atoms,
             Array<float>& vectors, Array<double>& time, Array<std::int64_t>& step) {
    const std::int64_t* edges = offsets.data();
    const std::int64_t n_frames = offsets.size() - 1;
    float* to_vectors = vectors.mutable_data();
    double* to_time = time.mutable_data();
    std::int64_t* to_step = step.mutable_data();
    py::gil_scoped_release release;
    read_headers(fd, first, edges, n_frames, n_atoms, to_vectors, to_time, to_step);
}

// (magic, atoms, step, time, box vectors, precision or None, bytes of the frame)
py::tuple header(const std::string& raw, std::int64_t frame, std::int64_t offset, std::int64_t n_atoms) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(raw.data());
    Header parsed;
    try {
        parsed = parse_header(bytes, raw.size(), n_atoms);
    } catch (const std::invalid_argument& error) {
        throw std::invalid_argument(located(frame, offset, error.what()));
    }
    py::tuple vectors(9);
    for (int i = 0; i < 9; ++i) vectors[i] = double(parsed.vectors_nm[i]);
    const py::object precision = parsed.precision > 0 ? py::object(py::float_(parsed.precision)) : py::none();
    return py::make_tuple(load_be32(bytes), parsed.n_atoms, parsed.step, parsed.time_ps, vectors, precision,
                          parsed.nbytes);
}

void decode(const Array<std::uint8_t>& data, std::int64_t first,
            const Array<std::int64_t>& offsets, std::int64_t n_atoms,
            py::array_t<float>& positions, Array<float>& vectors, Array<double>& time,
            Array<std::int64_t>& step, const std::optional<Array<std::int64_t>>& atoms,
            const std::optional<Array<std::int64_t>>& targets, int n_threads) {
    Run run;
    run.data = data.data();
    run.first = first;
    run.offsets = offsets.data();
    run.n_frames = offsets.size() - 1;
    run.n_atoms = n_atoms;
    run.positions = positions.mutable_data();
    run.stride = positions.strides(0) / static_cast<py::ssize_t>(sizeof(float));
    run.vectors_nm = vectors.mutable_data();
    run.time_ps = time.mutable_data();
    run.step = step.mutable_data();
    if (atoms) run.selection = {atoms->data(), targets ? targets->data() : nullptr, atoms->size()};
    const auto room = static_cast<std::int64_t>(data.size()) - std::int64_t(PADDING);
    if (run.offsets[run.n_frames] - run.offsets[0] > room)
        throw std::invalid_argument("the buffer is too small");
    py::gil_scoped_release release;
    decode_run(run, n_threads);
}

py::bytes encode(const Array<float>& positions, const Array<float>& vectors,
                 const Array<float>& time, const Array<std::int32_t>& step, float precision) {
    const float* x = positions.data();
    const std::int64_t n_frames = positions.shape(0), n_atoms = positions.shape(1);
    const float* boxes = vectors.data();
    const float* times = time.data();
    const std::int32_t* steps = step.data();
    std::string out;
    {
        py::gil_scoped_release release;
        for (std::int64_t i = 0; i < n_frames; ++i) {
            try {
                encode_frame(x + 3 * n_atoms * i, n_atoms, boxes + 9 * i, times[i], steps[i],
                             precision, out);
            } catch (const std::invalid_argument& error) {
                throw std::invalid_argument("frame " + std::to_string(i) + ": " + error.what());
            }
        }
    }
    return py::bytes(out);
}

void translate(std::exception_ptr pointer) {
    try {
        if (pointer) std::rethrow_exception(pointer);
    } catch (const std::system_error& error) {
        errno = error.code().value();
        PyErr_SetFromErrno(PyExc_OSError);
    }
}

}  // namespace

PYBIND11_MODULE(_xtc, module) {
    module.doc() = "XTC frames; see mdio.core.xtc.";
    module.attr("PADDING") = PADDING;
    py::register_exception_translator(translate);
    module.def("scan", scan_file, py::arg("fd"), py::arg("nbytes"));
    module.def("parse_header", header, py::arg("raw"), py::arg("frame"), py::arg("offset"), py::arg("n_atoms"));
    module.def("read_headers", headers, py::arg("fd"), py::arg("first"),
               py::arg("offsets").noconvert(), py::arg("n_atoms"), py::arg("vectors").noconvert(),
               py::arg("time").noconvert(), py::arg("step").noconvert());
    module.def("decode", decode, py::arg("data").noconvert(), py::arg("first"),
               py::arg("offsets").noconvert(), py::arg("n_atoms"),
               py::arg("positions").noconvert(), py::arg("vectors").noconvert(),
               py::arg("time").noconvert(), py::arg("step").noconvert(),
               py::arg("atoms").noconvert(), py::arg("targets").noconvert(),
               py::arg("n_threads"));
    module.def("encode", encode, py::arg("positions").noconvert(), py::arg("vectors").noconvert(),
               py::arg("time").noconvert(), py::arg("step").noconvert(), py::arg("precision"));
    module.def("_plain_only", [](bool plain) { mdio::plain_only = plain; });
}
