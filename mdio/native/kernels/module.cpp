// Python's view of the kernels: takes arrays apart, lets go of the GIL, calls.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "cpu.h"
#include "kernels.h"

namespace py = pybind11;
using Array = py::array;
using Edges = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;
using Sums = py::array_t<uint32_t, py::array::c_style | py::array::forcecast>;
using Atoms = std::optional<py::array>;

namespace {

mdio::Frames frames(const Array& array) {
    return {static_cast<const char*>(array.data()), array.shape(0), array.shape(1),
            array.strides(0)};
}

mdio::Output output(Array& array) {
    return {static_cast<char*>(array.mutable_data()), array.shape(1), array.strides(0)};
}

const int64_t* indices(const Atoms& atoms) {
    return atoms ? static_cast<const int64_t*>(atoms->data()) : nullptr;
}

// What lies in any C-contiguous buffer, whatever its items are.
class Bytes {
public:
    explicit Bytes(const py::buffer& buffer) {
        if (PyObject_GetBuffer(buffer.ptr(), &view_, PyBUF_SIMPLE)) {
            PyErr_Clear();
            throw py::value_error("the data must be C-contiguous; pass a copy");
        }
    }
    ~Bytes() { PyBuffer_Release(&view_); }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
    uint8_t* data() const { return static_cast<uint8_t*>(view_.buf); }
    size_t size() const { return size_t(view_.len); }

private:
    Py_buffer view_;
};

uint32_t crc32c(const py::buffer& buffer, uint32_t value) {
    const Bytes bytes(buffer);
    py::gil_scoped_release unlocked;
    return mdio::crc32c(bytes.data(), bytes.size(), value);
}

// Of consecutive pieces; the first begins with the data.
Array crc32c_pieces(const py::buffer& buffer, const Edges& edges) {
    const Bytes bytes(buffer);
    const int64_t* edge = edges.data();
    const py::ssize_t n = edges.size() - 1;
    if (n < 0) throw py::index_error("there are no edges");
    py::array_t<uint32_t> sums(n);
    uint32_t* to = sums.mutable_data();
    const int64_t begin = edge[0], end = begin + int64_t(bytes.size());
    {
        py::gil_scoped_release unlocked;
        for (py::ssize_t i = 0; i < n; ++i) {
            if (edge[i] < begin || edge[i + 1] < edge[i] || edge[i + 1] > end) {
                to = nullptr;
                break;
            }
            to[i] = mdio::crc32c(bytes.data() + (edge[i] - begin), size_t(edge[i + 1] - edge[i]), 0);
        }
    }
    if (!to) throw py::index_error("a piece lies outside of the data");
    return sums;
}

uint32_t crc32c_joined(const Sums& crcs, const Edges& edges) {
    if (edges.size() != crcs.size() + 1) throw py::index_error("an edge more than checksums");
    return mdio::crc32c_joined(crcs.data(), edges.data(), size_t(crcs.size()));
}

// Reads neighbouring rows of a file and compares the checksum of each piece of each row: false where
// not all could be read, or one differs; what it is, the caller finds out.
bool read_rows(int fd, int64_t offset, const py::buffer& rows, const Sums& sums, size_t piece_nbytes) {
    const Bytes bytes(rows);
    const py::ssize_t n_rows = sums.ndim() == 2 ? sums.shape(0) : 0;
    const size_t row_nbytes = n_rows ? bytes.size() / size_t(n_rows) : 0;
    const size_t n_pieces = n_rows ? size_t(sums.shape(1)) : 0;
    if (!row_nbytes || !piece_nbytes || row_nbytes * size_t(n_rows) != bytes.size() ||
        (row_nbytes + piece_nbytes - 1) / piece_nbytes != n_pieces)
        throw py::value_error("rows and checksums of their pieces do not fit together");
    const uint32_t* expected = sums.data();
    py::gil_scoped_release unlocked;
    for (size_t done = 0; done < bytes.size();) {
        const ssize_t n = pread(fd, bytes.data() + done, bytes.size() - done, off_t(offset) + off_t(done));
        if (n <= 0) return false;
        done += size_t(n);
    }
    const uint8_t* row = bytes.data();
    for (py::ssize_t i = 0; i < n_rows; ++i, row += row_nbytes)
        for (size_t at = 0; at < row_nbytes; at += piece_nbytes)
            if (mdio::crc32c(row + at, std::min(piece_nbytes, row_nbytes - at), 0) != *expected++)
                return false;
    return true;
}

void planar_to_xyz(const Array& planar, Array out, const Atoms& atoms, bool swap) {
    const mdio::Frames from = {static_cast<const char*>(planar.data()), planar.shape(0),
                               planar.shape(2), planar.strides(0)};
    const int64_t axis_stride = planar.strides(1);
    const mdio::Output to = output(out);
    const int64_t* picked = indices(atoms);
    py::gil_scoped_release unlocked;
    mdio::planar_to_xyz(from, axis_stride, to, picked, swap);
}

void xyz_to_planar(const Array& src, Array planar) {
    const mdio::Frames from = frames(src);
    const mdio::Output to = {static_cast<char*>(planar.mutable_data()), planar.shape(2),
                             planar.strides(0)};
    const int64_t axis_stride = planar.strides(1);
    py::gil_scoped_release unlocked;
    mdio::xyz_to_planar(from, to, axis_stride);
}

void copy_atoms(const Array& src, Array out, const Atoms& atoms, bool swap, double scale) {
    const mdio::Frames from = frames(src);
    const mdio::Output to = output(out);
    const int64_t* picked = indices(atoms);
    py::gil_scoped_release unlocked;
    mdio::copy_atoms(from, to, picked, swap, float(scale));
}

py::bytes shuffle(const py::buffer& buffer, size_t itemsize) {
    const Bytes bytes(buffer);
    py::bytes shuffled(nullptr, bytes.size());
    auto* to = reinterpret_cast<uint8_t*>(PyBytes_AS_STRING(shuffled.ptr()));
    {
        py::gil_scoped_release unlocked;
        mdio_shuffle(bytes.data(), bytes.size(), itemsize, to);
    }
    return shuffled;
}

void unshuffle(const py::buffer& buffer, size_t itemsize, const py::buffer& out) {
    const Bytes from(buffer), to(out);
    py::gil_scoped_release unlocked;
    mdio_unshuffle(from.data(), from.size(), itemsize, to.data());
}

void rmsd(const Array& positions, const Array& reference, const Atoms& weights, bool superpose,
          Array out) {
    const mdio::Frames from = frames(positions);
    const auto* fixed = static_cast<const double*>(reference.data());
    const auto* weight = weights ? static_cast<const double*>(weights->data()) : nullptr;
    auto* to = static_cast<double*>(out.mutable_data());
    py::gil_scoped_release unlocked;
    mdio::rmsd(from, fixed, weight, superpose, to);
}

void dihedrals(const Array& positions, const Array& quads, Array out, Array longest) {
    const mdio::Frames from = frames(positions);
    const auto* atoms = static_cast<const int64_t*>(quads.data());
    const py::ssize_t n = quads.shape(0);
    auto* to = static_cast<double*>(out.mutable_data());
    auto* bonds = static_cast<double*>(longest.mutable_data());
    py::gil_scoped_release unlocked;
    mdio::dihedrals(from, atoms, n, to, bonds);
}

void cut_frames(const Array& positions, const Array& cells, const Array& pairs, double near,
                Array out) {
    const mdio::Frames from = frames(positions);
    const auto* vectors = static_cast<const double*>(cells.data());
    const mdio::Indices neighbours = {static_cast<const int64_t*>(pairs.data()), pairs.shape(0)};
    auto* to = static_cast<bool*>(out.mutable_data());
    py::gil_scoped_release unlocked;
    mdio::cut_frames(from, vectors, neighbours, near, to);
}

void distances(const Array& positions, const Array& cells, const Array& first, const Array& second,
               Array out) {
    const mdio::Frames from = frames(positions);
    const auto* vectors = static_cast<const double*>(cells.data());
    const mdio::Indices ones = {static_cast<const int64_t*>(first.data()), first.shape(0)};
    const auto* others = static_cast<const int64_t*>(second.data());
    auto* to = static_cast<double*>(out.mutable_data());
    py::gil_scoped_release unlocked;
    mdio::distances(from, vectors, ones, others, to);
}

void longest_distances(const Array& positions, const Array& pairs, Array out) {
    const mdio::Frames from = frames(positions);
    const mdio::Indices neighbours = {static_cast<const int64_t*>(pairs.data()), pairs.shape(0)};
    auto* to = static_cast<double*>(out.mutable_data());
    py::gil_scoped_release unlocked;
    mdio::longest_distances(from, neighbours, to);
}

void within(const Array& positions, const Array& vectors, const Array& sources,
            const Array& targets, double radius, Array out) {
    const mdio::Frames from = frames(positions);
    const auto* cells = static_cast<const double*>(vectors.data());
    const mdio::Indices near = {static_cast<const int64_t*>(sources.data()), sources.shape(0)};
    const mdio::Indices asked = {static_cast<const int64_t*>(targets.data()), targets.shape(0)};
    auto* to = static_cast<bool*>(out.mutable_data());
    py::gil_scoped_release unlocked;
    mdio::within(from, cells, near, asked, radius, to);
}

}  // namespace

void add_codecs(py::module_& module);
void add_periodic(py::module_& module);

PYBIND11_MODULE(_kernels, module) {
    module.doc() = "The kernels in C++; call them through mdio.core.kernels.";
    module.def("crc32c", crc32c, py::arg("data"), py::arg("value") = 0);
    module.def("crc32c_pieces", crc32c_pieces);
    module.def("read_rows", read_rows);
    module.def("crc32c_joined", crc32c_joined);
    module.def("planar_to_xyz", planar_to_xyz);
    module.def("xyz_to_planar", xyz_to_planar);
    module.def("copy_atoms", copy_atoms);
    module.def("shuffle", shuffle);
    module.def("unshuffle", unshuffle);
    module.def("rmsd", rmsd);
    module.def("dihedrals", dihedrals);
    module.def("cut_frames", cut_frames);
    module.def("distances", distances);
    module.def("longest_distances", longest_distances);
    module.def("within", within);
    module.def("_crc32c_all_ways", [](const py::buffer& buffer, uint32_t value) {
        const Bytes bytes(buffer);
        return mdio::crc32c_all_ways(bytes.data(), bytes.size(), value);
    });
    add_codecs(module);
    add_periodic(module);
    module.def("_plain_only", [](bool plain) { mdio::plain_only = plain; });
    module.def("_avx2_only", [](bool avx2) { mdio::avx2_only = avx2; });
    module.def("_loads_only", [](bool loads) { mdio::loads_only = loads; });
}
