// Python's view of the codecs.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <stdexcept>

#include "integers.h"

namespace py = pybind11;
using Array = py::array;
using Atoms = std::optional<py::array>;

namespace {

// Of this thread, which the library makes none of.
mdio_memory* memory() {
    static thread_local const std::unique_ptr<mdio_memory, decltype(&mdio_memory_free)> of{mdio_memory_new(), mdio_memory_free};
    if (!of) throw std::bad_alloc();
    return of.get();
}

// Raises what a status says.
void check(mdio_status status) {
    if (status == MDIO_NO_MEMORY) throw std::bad_alloc();
    if (status == MDIO_DAMAGED || status == MDIO_WRONG_ARGUMENT) throw std::invalid_argument(mdio_message(memory()));
}

mdio_frames frames(const Array& positions) {
    return {static_cast<const char*>(positions.data()), positions.shape(0), positions.shape(1),
            positions.strides(0)};
}

mdio_output output(Array& out) {
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
    return mdio_pack(rows, n_rows, n, to);
}

void sum_packed(const Array& bytes, int64_t n_frames, int64_t n_atoms, const Atoms& kept, double number, bool is_xtc,
                Array out, const Atoms& atoms, int64_t first, int64_t last) {
    const mdio_output to = output(out);
    const mdio_selection which{indices(atoms), first, last};
    const mdio_packed from{static_cast<const uint8_t*>(bytes.data()), bytes.size(),
                           kept ? static_cast<const uint8_t*>(kept->data()) : nullptr, n_frames, n_atoms};
    py::gil_scoped_release unlocked;
    check(mdio_unpack(memory(), &from, {number, is_xtc}, &which, &to));
}

bool quantise(const Array& positions, double number, bool is_xtc, Array out) {
    const mdio_frames from = frames(positions);
    auto* to = static_cast<int32_t*>(out.mutable_data());
    py::gil_scoped_release unlocked;
    return mdio_quantise(&from, {number, is_xtc}, to) == MDIO_OK;
}

void dequantise(const Array& deltas, double number, bool is_xtc, Array out, const Atoms& atoms, int64_t first,
                int64_t last) {
    const auto* from = static_cast<const char*>(deltas.data());
    const int64_t n_atoms = deltas.shape(1);
    const mdio_output to = output(out);
    const int64_t* picked = indices(atoms);
    py::gil_scoped_release unlocked;
    mdio::dequantise(from, n_atoms, {number, is_xtc}, to, picked, first, last);
}

py::object choose_neighbours(const Array& deltas) {
    const auto* from = static_cast<const int32_t*>(deltas.data());
    const py::ssize_t n_frames = deltas.shape(0), n_atoms = deltas.shape(1);
    py::array_t<uint8_t> kept(n_atoms);
    uint8_t* to = kept.mutable_data();
    int is_better = 0;
    {
        py::gil_scoped_release unlocked;
        check(mdio_choose_neighbours(memory(), from, n_frames, n_atoms, to, &is_better));
    }
    return is_better ? py::object(kept) : py::none();
}

void difference_neighbours(Array deltas, const Array& kept) {
    auto* data = static_cast<int32_t*>(deltas.mutable_data());
    const auto* how = static_cast<const uint8_t*>(kept.data());
    const py::ssize_t n_frames = deltas.shape(0), n_atoms = deltas.shape(1);
    py::gil_scoped_release unlocked;
    check(mdio_difference_neighbours(memory(), data, n_frames, n_atoms, how));
}

void sum_neighbours(const Array& differences, const Array& kept, double number, bool is_xtc, Array out,
                    const Atoms& atoms) {
    const mdio::Neighbours from = {static_cast<const int32_t*>(differences.data()),
                                   static_cast<const uint8_t*>(kept.data()), differences.shape(0),
                                   differences.shape(1)};
    const mdio_output to = output(out);
    const int64_t* picked = indices(atoms);
    py::gil_scoped_release unlocked;
    mdio::sum_neighbours(from, {number, is_xtc}, to, picked);
}

py::object encode_rigid(const Array& positions, double number, bool is_xtc, int key_every, int least) {
    const mdio_frames from = frames(positions);
    mdio_rigid made{};
    mdio_status status;
    {
        py::gil_scoped_release unlocked;
        status = mdio_rigid_encode(memory(), &from, {number, is_xtc}, key_every, least, &made);
        check(status);
    }
    if (status == MDIO_NO_INTEGERS) return py::none();
    // The data stay in this thread's memory, until it makes the next: a copy would take new pages.
    return py::make_tuple(py::bytes(reinterpret_cast<const char*>(made.description), size_t(made.description_nbytes)),
                          py::array_t<uint8_t>(made.nbytes, made.data, py::none()));
}

void decode_rigid(const Array& description, const Array& bytes, int64_t n_frames, int64_t n_atoms, double number,
                  bool is_xtc, Array out, const Atoms& atoms, int64_t first, int64_t last) {
    const mdio_output to = output(out);
    const mdio_selection which{indices(atoms), first, last};
    const mdio_rigid from{static_cast<const uint8_t*>(description.data()), description.size(),
                          static_cast<const uint8_t*>(bytes.data()), bytes.size(), n_frames, n_atoms};
    py::gil_scoped_release unlocked;
    check(mdio_rigid_decode(memory(), &from, {number, is_xtc}, &which, &to));
}

template <class Narrow>
Array folded_as(const int32_t* from, py::ssize_t n) {
    py::array_t<Narrow> folded(n);
    Narrow* to = folded.mutable_data();
    {
        py::gil_scoped_release unlocked;  // not for what follows: the result is counted once more
        mdio::fold(from, n, to);
    }
    return folded;
}

Array fold(const Array& integers) {
    const auto* from = static_cast<const int32_t*>(integers.data());
    const py::ssize_t n = integers.size();
    bool narrow;
    {
        py::gil_scoped_release unlocked;
        narrow = mdio::folds_to_16_bits(from, n);
    }
    return narrow ? folded_as<uint16_t>(from, n) : folded_as<uint32_t>(from, n);
}

void unfold(const Array& folded, Array out) {
    const auto* from = static_cast<const char*>(folded.data());
    const bool wide = folded.itemsize() == 4;
    const py::ssize_t n = folded.size();
    auto* to = static_cast<int32_t*>(out.mutable_data());
    py::gil_scoped_release unlocked;
    mdio::unfold(from, wide, n, to);
}

}  // namespace

void add_codecs(py::module_& module) {
    module.def("quantise", quantise);
    module.def("dequantise", dequantise);
    module.def("choose_neighbours", choose_neighbours);
    module.def("difference_neighbours", difference_neighbours);
    module.def("sum_neighbours", sum_neighbours);
    module.def("fold", fold);
    module.def("unfold", unfold);
    module.def("encode_rigid", encode_rigid);
    module.def("decode_rigid", decode_rigid);
    module.def("pack", pack);
    module.def("sum_packed", sum_packed);
}
