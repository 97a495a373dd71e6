// Python's view of packed integers.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "kernels.h"

namespace py = pybind11;
using Array = py::array;
using Atoms = std::optional<py::array>;

namespace {

mdio::Packed checked(const Array& bytes, int64_t n_rows, int64_t n_numbers) {
    return mdio::packed(static_cast<const uint8_t*>(bytes.data()), bytes.size(), n_rows,
                        n_numbers);
}

mdio::Output output(Array& out) {
    return {static_cast<char*>(out.mutable_data()), out.shape(1), out.strides(0)};
}

const int64_t* indices(const Atoms& atoms) {
    return atoms ? static_cast<const int64_t*>(atoms->data()) : nullptr;
}

int64_t pack(const Array& integers, Array room) {
    const auto* rows = static_cast<const int32_t*>(integers.data());
    const py::ssize_t n_rows = integers.shape(0), n = n_rows ? integers.size() / n_rows : 0;
    auto* to = static_cast<uint8_t*>(room.mutable_data());
    py::gil_scoped_release unlocked;
    return mdio::pack(rows, n_rows, n, to);
}

template <void (*sum)(const mdio::Packed&, double, const mdio::Output&, const int64_t*, int64_t,
                      int64_t)>
void summed(const Array& bytes, int64_t n_frames, int64_t n_atoms, double number, Array out,
            const Atoms& atoms, int64_t first, int64_t last) {
    const mdio::Output to = output(out);
    const int64_t* picked = indices(atoms);
    py::gil_scoped_release unlocked;
    sum(checked(bytes, n_frames, 3 * n_atoms), number, to, picked, first, last);
}

template <void (*sum)(const mdio::PackedNeighbours&, double, const mdio::Output&, const int64_t*,
                      int64_t, int64_t)>
void summed_neighbours(const Array& bytes, int64_t n_frames, const Array& kept, double number,
                       Array out, const Atoms& atoms, int64_t first, int64_t last, Array room) {
    const mdio::Output to = output(out);
    const int64_t* picked = indices(atoms);
    const auto* how = static_cast<const uint8_t*>(kept.data());
    auto* integers = static_cast<uint32_t*>(room.mutable_data());
    const py::ssize_t n_atoms = kept.size();
    py::gil_scoped_release unlocked;
    sum({checked(bytes, n_frames, 3 * n_atoms), how, integers}, number, to, picked, first, last);
}

py::object encode_rigid(const Array& positions, double number, bool is_xtc, int64_t key_every, int64_t least) {
    const mdio::Frames from = {static_cast<const char*>(positions.data()), positions.shape(0), positions.shape(1),
                               positions.strides(0)};
    const mdio::RigidBytes* made;
    {
        py::gil_scoped_release unlocked;
        made = mdio::encode_rigid(from, {number, is_xtc}, {key_every, least});
    }
    if (!made) return py::none();
    const auto nbytes = static_cast<py::ssize_t>(made->data.size());
    return py::make_tuple(py::bytes(made->description),
                          py::array_t<uint8_t>(nbytes, made->data.data()));
}

template <void (*undo)(const mdio::RigidChunk&, double, const mdio::Output&, const int64_t*,
                       int64_t, int64_t)>
void decoded_rigid(const Array& description, const Array& bytes, int64_t n_frames, int64_t n_atoms,
                   double number, Array out, const Atoms& atoms, int64_t first, int64_t last) {
    const mdio::Output to = output(out);
    const int64_t* picked = indices(atoms);
    const mdio::RigidChunk from{static_cast<const uint8_t*>(description.data()), description.size(),
                                static_cast<const uint8_t*>(bytes.data()), bytes.size(), n_frames,
                                n_atoms};
    py::gil_scoped_release unlocked;
    undo(from, number, to, picked, first, last);
}

}  // namespace

void add_packed(py::module_& module) {
    module.def("encode_rigid", encode_rigid);
    module.def("decode_rigid_step", decoded_rigid<mdio::decode_rigid_step>);
    module.def("decode_rigid_xtc", decoded_rigid<mdio::decode_rigid_xtc>);
    module.def("pack", pack);
    module.def("sum_packed_step", summed<mdio::sum_packed_step>);
    module.def("sum_packed_xtc", summed<mdio::sum_packed_xtc>);
    module.def("sum_packed_neighbours_step", summed_neighbours<mdio::sum_packed_neighbours_step>);
    module.def("sum_packed_neighbours_xtc", summed_neighbours<mdio::sum_packed_neighbours_xtc>);
}
